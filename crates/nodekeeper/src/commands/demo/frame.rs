//! What is on the screen: a pure picture of where the machines stand.

use std::collections::BTreeMap;
use std::time::Duration;

use nodekeeper_core::gate::State;

use super::cast::Part;
use super::eye::Row;
use super::line::{Line, Paint};

/// Wide enough for every state, and for a name such as `ip-10-0-3-217`.
const STATE: usize = 12;
const NAME: usize = 14;
/// A cell a machine.
const BAR: usize = 24;
/// How many lines of the story are shown.
const NOTES: usize = 4;
/// Lines besides those of single machines: heading, bar, table heading, zones, notes, and what is between them.
const AROUND: usize = 10 + NOTES;
/// The four with a part, and one that says how many more there are.
const FEWEST_ROWS: usize = 5;

/// All that is shown.
pub struct Frame<'a> {
    /// The machines that have joined.
    pub rows: &'a [Row],
    /// How many there will be.
    pub machines: usize,
    /// What the demo did so far.
    pub notes: &'a [Line],
    /// How long it has been running.
    pub elapsed: Duration,
}

impl Frame<'_> {
    /// The picture, in so many lines at most.
    pub fn lines(&self, height: usize) -> Vec<Line> {
        let mut lines = vec![
            Line::default()
                .and(Paint::Bold, "Nodekeeper")
                .and(Paint::Plain, "  a new node keeps its taint until a worker has proved its network"),
            Line::default(),
            self.bar(),
            Line::default(),
        ];
        lines.extend(self.table(height.saturating_sub(AROUND).max(FEWEST_ROWS)));
        lines.push(Line::default());
        lines.extend(self.zones());
        lines.push(Line::default());
        lines.extend(self.notes.iter().skip(self.notes.len().saturating_sub(NOTES)).cloned());
        lines.truncate(height);
        lines
    }

    fn count(&self, wanted: impl Fn(&Row) -> bool) -> usize {
        self.rows.iter().filter(|row| wanted(row)).count()
    }

    fn bar(&self) -> Line {
        let open = self.count(|row| row.state == State::Verified);
        let failing = self.count(is_failing);
        let others = self.rows.len() - open - failing;
        let cells = |n: usize| (n * BAR).div_ceil(self.machines.max(1));
        let (green, red) = (cells(open).min(BAR), cells(failing));
        let red = red.min(BAR - green);
        let cyan = cells(others).min(BAR - green - red);
        Line::default()
            .and(Paint::Green, "█".repeat(green))
            .and(Paint::Cyan, "▓".repeat(cyan))
            .and(Paint::Red, "█".repeat(red))
            .and(Paint::Dim, "░".repeat(BAR - green - cyan - red))
            .and(Paint::Plain, format!("  {} joined  ", self.rows.len()))
            .and(Paint::Cyan, format!("{others} verifying  "))
            .and(Paint::Green, format!("{open} open  "))
            .and(Paint::Red, format!("{failing} failing  "))
            .and(Paint::Dim, format!("{:>5.1} s", self.elapsed.as_secs_f64()))
    }

    /// Those with a part always, of the others those that are not open yet.
    fn table(&self, most: usize) -> Vec<Line> {
        let heading = format!("{:NAME$} {:STATE$} {:7} WHY", "NODE", "STATE", "ATTEMPT");
        let (special, others): (Vec<&Row>, Vec<&Row>) =
            self.rows.iter().partition(|row| row.part != Part::Healthy);
        let mut shown = special;
        shown.extend(others.into_iter().filter(|row| row.state != State::Verified));
        let more = shown.len().saturating_sub(most);
        if more > 0 {
            shown.truncate(most - 1);
        }
        let mut lines = vec![Line::default().and(Paint::Dim, heading)];
        lines.extend(shown.into_iter().map(row_line));
        if more > 0 {
            lines.push(Line::default().and(Paint::Dim, format!("… and {} more", more + 1)));
        }
        lines
    }

    /// The open ones, a line a zone.
    fn zones(&self) -> Vec<Line> {
        let mut zones: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for row in self.rows {
            let open = zones.entry(&row.zone).or_default();
            if row.state == State::Verified {
                open.push(row.name.rsplit_once('-').map_or(row.name.as_str(), |(_, last)| last));
            }
        }
        let line = |(zone, open): (&&str, &Vec<&str>)| {
            let names: Vec<String> = open.iter().map(|last| format!("…-{last}")).collect();
            Line::default()
                .and(Paint::Dim, format!("{zone:NAME$} "))
                .and(Paint::Green, format!("{:2} open  ", open.len()))
                .and(Paint::Dim, names.join(" "))
        };
        zones.iter().map(line).collect()
    }
}

/// Has a failure on record, or in words: more attempts to come, or none.
fn is_failing(row: &Row) -> bool {
    row.state != State::Verified && row.attempts.0 > 0
}

/// The colour of a state.
pub fn paint(state: State) -> Paint {
    match state {
        State::Verified => Paint::Green,
        State::Failed => Paint::Red,
        State::Unverified | State::Inconclusive | State::Stuck | State::Unserved => Paint::Yellow,
        State::Pending | State::InProgress => Paint::Cyan,
        State::Ungated | State::Terminating | State::Waiting => Paint::Dim,
    }
}

fn row_line(row: &Row) -> Line {
    let attempts = match row.attempts {
        (0, _) => String::new(),
        (n, 0) => n.to_string(),
        (n, allowed) if n <= allowed => format!("{n} of {allowed}"),
        (n, _) => n.to_string(),
    };
    Line::new(format!("{:NAME$} ", row.name))
        .and(paint(row.state), format!("{:STATE$} ", format!("{:?}", row.state)))
        .and(Paint::Plain, format!("{attempts:7} "))
        .and(Paint::Plain, row.brief.clone())
}

/// A change of state, where there is no table.
pub fn change_line(row: &Row, elapsed: Duration) -> Line {
    stamp(elapsed)
        .and(Paint::Plain, format!("{:NAME$} ", row.name))
        .and(paint(row.state), format!("{:STATE$} ", format!("{:?}", row.state)))
        .and(Paint::Plain, row.why.clone())
}

/// The beginning of a line that says when.
pub fn stamp(elapsed: Duration) -> Line {
    Line::default().and(Paint::Dim, format!("{:>6.1}s  ", elapsed.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(n: usize) -> Vec<Row> {
        let state = |i| if i % 2 == 0 { State::Verified } else { State::InProgress };
        let row = |i| Row {
            name: format!("ip-10-0-1-{i}"),
            zone: "z1".into(),
            part: if i < 4 { Part::NoApi } else { Part::Healthy },
            state: state(i),
            attempts: (0, 4),
            worker: 1,
            why: "worker 1 runs".into(),
            brief: "worker 1 runs".into(),
        };
        (0..n).map(row).collect()
    }

    fn picture(rows: &[Row], height: usize) -> Vec<String> {
        let notes: Vec<Line> = (0..9).map(|n| Line::new(format!("note {n}"))).collect();
        let frame = Frame { rows, machines: 24, notes: &notes, elapsed: Duration::from_secs(3) };
        frame.lines(height).iter().map(|line| line.show(80, false)).collect()
    }

    #[test]
    fn it_fits_an_old_terminal() {
        for n in [0, 1, 4, 12, 24] {
            let lines = picture(&rows(n), 24);
            assert!(lines.len() <= 24, "{n} machines take {} lines", lines.len());
            assert!(lines.iter().all(|line| line.chars().count() <= 80));
            assert_eq!(lines.last().map(String::as_str), Some("note 8"));
        }
    }

    #[test]
    fn everybody_with_a_part_is_there_and_the_rest_is_counted() {
        let lines = picture(&rows(24), 24);
        for name in ["ip-10-0-1-0 ", "ip-10-0-1-3 ", "ip-10-0-1-5 "] {
            assert!(lines.iter().any(|line| line.starts_with(name)), "{name} in {lines:#?}");
        }
        assert!(lines.iter().any(|line| line.contains("and 5 more")), "{lines:#?}");
        assert!(lines[2].contains("24 joined  12 verifying  12 open  0 failing"), "{}", lines[2]);
        assert!(lines.iter().any(|line| line.starts_with("z1") && line.contains("12 open")), "{lines:#?}");
    }

    #[test]
    fn the_bar_has_the_same_length_whatever_it_shows() {
        for n in [0, 1, 7, 24] {
            let bar = picture(&rows(n), 24)[2].chars().filter(|c| "█▓░".contains(*c)).count();
            assert_eq!(bar, BAR, "{n}");
        }
    }
}
