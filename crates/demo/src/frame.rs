//! The live table of the demo, as a pure function of the state of the machines.

use std::collections::BTreeMap;
use std::time::Duration;

use nodekeeper_core::gate::State;

use crate::line::{Line, Style};
use crate::machines::Scenario;
use crate::observer::Row;

/// Column widths: the longest state, and a name such as `ip-10-0-3-217`.
const STATE: usize = 12;
const NAME: usize = 14;
/// Width of the progress bar.
const BAR: usize = 20;
/// Lines that are neither rows of machines nor notes.
const FIXED: usize = 10;
/// The four machines with a fault, and one line for the number of others.
const MIN_ROWS: usize = 5;

pub struct Frame<'a> {
    pub title: &'a str,
    /// The machines that have joined.
    pub rows: &'a [Row],
    /// The number of machines when all have joined.
    pub machines: usize,
    pub notes: &'a [Line],
    /// How many of the latest notes are shown.
    pub max_notes: usize,
    pub elapsed: Duration,
}

impl Frame<'_> {
    /// Returns at most `height` lines.
    pub fn lines(&self, height: usize) -> Vec<Line> {
        let mut lines = vec![
            Line::default().with(Style::Bold, "Nodekeeper").with(Style::Plain, format!("  {}", self.title)),
            Line::default(),
            self.bar(),
            Line::default(),
        ];
        lines.extend(self.table(height.saturating_sub(FIXED + self.max_notes).max(MIN_ROWS)));
        lines.push(Line::default());
        lines.extend(self.zones());
        lines.push(Line::default());
        lines.extend(self.notes.iter().skip(self.notes.len().saturating_sub(self.max_notes)).cloned());
        lines.truncate(height);
        lines
    }

    fn count(&self, wanted: impl Fn(&Row) -> bool) -> usize {
        self.rows.iter().filter(|row| wanted(row)).count()
    }

    fn bar(&self) -> Line {
        let verified = self.count(|row| row.state == State::Verified);
        let failing = self.count(is_failing);
        let others = self.rows.len() - verified - failing;
        let cells = |n: usize| (n * BAR).div_ceil(self.machines.max(1));
        let (green, red) = (cells(verified).min(BAR), cells(failing));
        let red = red.min(BAR - green);
        let cyan = cells(others).min(BAR - green - red);
        Line::default()
            .with(Style::Green, "█".repeat(green))
            .with(Style::Cyan, "▓".repeat(cyan))
            .with(Style::Red, "█".repeat(red))
            .with(Style::Dim, "░".repeat(BAR - green - cyan - red))
            .with(Style::Plain, format!("  {} joined  ", self.rows.len()))
            .with(Style::Cyan, format!("{others} verifying  "))
            .with(Style::Green, format!("{verified} verified  "))
            .with(Style::Red, format!("{failing} failing  "))
            .with(Style::Dim, format!("{:.1} s", self.elapsed.as_secs_f64()))
    }

    /// Shows machines with a fault always, and healthy ones until they are verified.
    fn table(&self, max_rows: usize) -> Vec<Line> {
        let heading = format!("{:NAME$} {:STATE$} {:7} WHY", "NODE", "STATE", "ATTEMPT");
        let (special, others): (Vec<&Row>, Vec<&Row>) =
            self.rows.iter().partition(|row| row.scenario != Scenario::Healthy);
        let mut shown = special;
        shown.extend(others.into_iter().filter(|row| row.state != State::Verified));
        let more = shown.len().saturating_sub(max_rows);
        if more > 0 {
            shown.truncate(max_rows - 1);
        }
        let mut lines = vec![Line::default().with(Style::Dim, heading)];
        lines.extend(shown.into_iter().map(row_line));
        if more > 0 {
            lines.push(Line::default().with(Style::Dim, format!("… and {} more", more + 1)));
        }
        lines
    }

    /// Returns one line per zone with its verified machines.
    fn zones(&self) -> Vec<Line> {
        let mut zones: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for row in self.rows {
            let verified = zones.entry(&row.zone).or_default();
            if row.state == State::Verified {
                verified.push(row.name.rsplit_once('-').map_or(row.name.as_str(), |(_, last)| last));
            }
        }
        let line = |(zone, verified): (&&str, &Vec<&str>)| {
            let names: Vec<String> = verified.iter().map(|last| format!("…-{last}")).collect();
            Line::default()
                .with(Style::Dim, format!("{zone:NAME$} "))
                .with(Style::Green, format!("{:2} verified  ", verified.len()))
                .with(Style::Dim, names.join(" "))
        };
        zones.iter().map(line).collect()
    }
}

/// A machine is failing if its record has a failed attempt and it is not verified.
fn is_failing(row: &Row) -> bool {
    row.state != State::Verified && row.attempts.0 > 0
}

pub fn style(state: State) -> Style {
    match state {
        State::Verified | State::Audited => Style::Green,
        State::Failed => Style::Red,
        State::Unverified | State::Inconclusive | State::Stuck | State::Unserved => Style::Yellow,
        State::Pending | State::InProgress => Style::Cyan,
        State::Ungated | State::Terminating | State::Waiting => Style::Dim,
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
        .with(style(row.state), format!("{:STATE$} ", format!("{:?}", row.state)))
        .with(Style::Plain, format!("{attempts:7} "))
        .with(Style::Plain, row.brief.clone())
}

/// Returns the line for a change of state, for output without the table.
pub fn change_line(row: &Row, elapsed: Duration) -> Line {
    timestamp(elapsed)
        .with(Style::Plain, format!("{:NAME$} ", row.name))
        .with(style(row.state), format!("{:STATE$} ", format!("{:?}", row.state)))
        .with(Style::Plain, row.why.clone())
}

/// Returns the start of a line with the elapsed time.
pub fn timestamp(elapsed: Duration) -> Line {
    Line::default().with(Style::Dim, format!("{:>6.1}s  ", elapsed.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(n: usize) -> Vec<Row> {
        let state = |i| if i % 2 == 0 { State::Verified } else { State::InProgress };
        let row = |i| Row {
            name: format!("ip-10-0-1-{i}"),
            zone: "z1".into(),
            scenario: if i < 4 { Scenario::ApiRefused } else { Scenario::Healthy },
            state: state(i),
            attempts: (0, 4),
            worker: 1,
            why: "worker 1 runs".into(),
            brief: "worker 1 runs".into(),
        };
        (0..n).map(row).collect()
    }

    fn render(rows: &[Row], height: usize) -> Vec<String> {
        let notes: Vec<Line> = (0..9).map(|n| Line::new(format!("note {n}"))).collect();
        let frame = Frame {
            title: "",
            rows,
            machines: 24,
            notes: &notes,
            max_notes: 4,
            elapsed: Duration::from_secs(3),
        };
        frame.lines(height).iter().map(|line| line.render(80, false)).collect()
    }

    #[test]
    fn it_fits_80_by_24() {
        for n in [0, 1, 4, 12, 24] {
            let lines = render(&rows(n), 24);
            assert!(lines.len() <= 24, "{n} machines take {} lines", lines.len());
            assert!(lines.iter().all(|line| line.chars().count() <= 80));
            assert_eq!(lines.last().map(String::as_str), Some("note 8"));
        }
    }

    #[test]
    fn machines_with_faults_are_shown_and_the_rest_is_counted() {
        let lines = render(&rows(24), 24);
        for name in ["ip-10-0-1-0 ", "ip-10-0-1-3 ", "ip-10-0-1-5 "] {
            assert!(lines.iter().any(|line| line.starts_with(name)), "{name} in {lines:#?}");
        }
        assert!(lines.iter().any(|line| line.contains("and 5 more")), "{lines:#?}");
        assert!(lines[2].contains("24 joined  12 verifying  12 verified  0 failing"), "{}", lines[2]);
        assert!(
            lines.iter().any(|line| line.starts_with("z1") && line.contains("12 verified")),
            "{lines:#?}"
        );
    }

    #[test]
    fn u09_nothing_of_the_bar_is_cut_at_80_columns() {
        let rows = rows(27);
        let elapsed = Duration::from_millis(123_400);
        let frame = Frame { title: "", rows: &rows, machines: 27, notes: &[], max_notes: 4, elapsed };
        assert!(frame.bar().width() <= 80 && frame.bar().render(80, false).ends_with("123.4 s"));
    }

    #[test]
    fn the_bar_has_a_fixed_length() {
        for n in [0, 1, 7, 24] {
            let bar = render(&rows(n), 24)[2].chars().filter(|c| "█▓░".contains(*c)).count();
            assert_eq!(bar, BAR, "{n}");
        }
    }
}
