//! Was all as it should be? Answered from the objects in the cluster, not from what was shown.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use nodekeeper_core::node::NodeView;
use nodekeeper_core::record::Record;
use nodekeeper_core::report::Verdict;
use nodekeeper_core::worker::WorkerView;
use nodekeeper_sim::object::namespace;

use super::cast::{ATTEMPTS, LABEL, Machine, Part, TAINT};
use super::eye::{Eye, Tale, shortened};
use super::line::{Line, Paint};
use super::stage::{NAMESPACE, Stage};

/// What is wrong, in words; nothing if all is well.
pub fn problems(stage: &Stage, machines: &[Machine], eye: &Eye) -> Vec<String> {
    let cluster = stage.cluster.local("demo");
    let pods = cluster.all("pods");
    let workers: Vec<WorkerView> = pods
        .iter()
        .filter(|pod| namespace(pod) == NAMESPACE)
        .filter_map(|pod| WorkerView::new(&serde_json::from_value((**pod).clone()).ok()?))
        .collect();
    let mut problems = Vec::new();
    for machine in machines {
        let node = cluster.get("nodes", "", &machine.name);
        let Some(node) = node.and_then(|node| serde_json::from_value((*node).clone()).ok()) else {
            problems.push(format!("{}: there is no such node", machine.name));
            continue;
        };
        let node = NodeView::new(&node);
        let left = workers.iter().filter(|worker| *worker.identity.node_uid == *node.uid).count();
        let wrong = if Part::HOPELESS.contains(&machine.part) {
            still_shut(machine.part, &node)
        } else {
            properly_open(&node, left)
        };
        let wrong = wrong.or_else(|| match machine.part {
            Part::Rebooted => booted_again(&node, eye.tale(&machine.name)?),
            _ => None,
        });
        problems.extend(wrong.map(|wrong| format!("{}: {wrong}", machine.name)));
    }
    problems
}

fn is_tainted(node: &NodeView) -> bool {
    node.taints.iter().any(|taint| &*taint.key == TAINT)
}

fn record(node: &NodeView) -> Record {
    node.record.as_deref().cloned().unwrap_or_default()
}

fn properly_open(node: &NodeView, workers_left: usize) -> Option<String> {
    let Record { verdict, why, scope, .. } = record(node);
    if is_tainted(node) {
        Some(format!("it should be open, and is tainted {TAINT}: {why}"))
    } else if node.labels.get(LABEL).is_none_or(|value| value != "true") {
        Some(format!("it is open, and has no label {LABEL}=true"))
    } else if verdict != Some(Verdict::Passed) {
        Some(format!("it is open, and its record does not say Passed: {why}"))
    } else if *scope.boot_id != *node.boot_id {
        Some("it was opened by a verdict about another boot".into())
    } else if workers_left > 0 {
        Some(format!("it is open, and {workers_left} of its workers are still there"))
    } else {
        None
    }
}

fn still_shut(part: Part, node: &NodeView) -> Option<String> {
    let Record { verdict, why, attempts, .. } = record(node);
    if !is_tainted(node) {
        Some("it is broken, and was let in".into())
    } else if node.labels.get(LABEL).is_some() {
        Some(format!("it is broken, and bears the label {LABEL}"))
    } else if verdict != Some(Verdict::Failed) || !part.is_named_by(&why) {
        Some(format!("{}, and its record says something else: {why}", part.trouble()))
    } else if attempts < ATTEMPTS {
        Some(format!("only {attempts} attempts are recorded"))
    } else {
        None
    }
}

fn booted_again(node: &NodeView, tale: &Tale) -> Option<String> {
    match tale.boots.as_slice() {
        [first, .., last] if first != last && **last == *node.boot_id => None,
        boots => Some(format!("it should have booted twice; its boots are {boots:?}")),
    }
}

/// What happened, in a few lines.
pub fn summary(machines: &[Machine], eye: &Eye, healed: Option<Duration>) -> Vec<Line> {
    let mut lines = vec![Line::default()];
    lines.extend(healthy(machines, eye));
    for machine in machines.iter().filter(|machine| machine.part != Part::Healthy) {
        lines.push(special(machine, eye, healed));
    }
    let writes = &eye.writes;
    lines.push(Line::default());
    lines.push(Line::new(format!(
        "{} writes by the controller: {} pods made, {} deleted, {} nodes patched, {} events.",
        writes.all(),
        writes.started,
        writes.removed,
        writes.patched,
        writes.told
    )));
    lines
}

fn seconds(times: &[SignedDuration], at: usize) -> String {
    times.get(at).map_or_else(|| "-".into(), |time| format!("{:.1} s", time.as_secs_f64()))
}

/// The table of those with which nothing is wrong.
fn healthy(machines: &[Machine], eye: &Eye) -> [Line; 3] {
    let healthy: Vec<&Machine> = machines.iter().filter(|machine| machine.part == Part::Healthy).collect();
    let opened = |machine: &&Machine| {
        let tale = eye.tale(&machine.name)?;
        Some(duration(tale.ready?, tale.open?))
    };
    let mut times: Vec<SignedDuration> = healthy.iter().filter_map(opened).collect();
    times.sort_unstable();
    let writes: u32 = healthy.iter().map(|machine| eye.writes.about(&machine.name)).sum();
    let count = healthy.len();
    let a_node = f64::from(writes) / f64::from(u32::try_from(count.max(1)).unwrap_or(u32::MAX));
    let heading = "                from Ready to open:   fastest   median  slowest   writes a node";
    let row = format!(
        "{:2} of {count:2} healthy nodes open         {:>9} {:>8} {:>8} {a_node:>15.1}",
        times.len(),
        seconds(&times, 0),
        seconds(&times, times.len() / 2),
        seconds(&times, times.len().saturating_sub(1)),
    );
    let paint = if times.len() == count { Paint::Green } else { Paint::Red };
    [Line::default().and(Paint::Dim, heading), Line::default().and(paint, row), Line::default()]
}

fn duration(from: Timestamp, to: Timestamp) -> SignedDuration {
    to.duration_since(from)
}

/// One line about a machine with a part.
fn special(machine: &Machine, eye: &Eye, healed: Option<Duration>) -> Line {
    let record = eye.record(machine.part);
    let tale = eye.tale(&machine.name).cloned().unwrap_or_default();
    let is_open = tale.open.is_some();
    let (paint, word) = if is_open { (Paint::Green, "open") } else { (Paint::Red, "tainted") };
    let detail = match machine.part {
        Part::SilentDns if is_open => {
            let at = healed.unwrap_or_default().as_secs_f64();
            format!("attempt {} passed; its DNS server was silent until {at:.1} s", record.attempts)
        }
        Part::Rebooted if is_open => {
            let (worker, boot) = (record.number, tale.boots.len());
            let workers: Vec<String> = tale.thrown_away.iter().map(ToString::to_string).collect();
            let before = if workers.is_empty() { "none".into() } else { workers.join(", ") };
            format!("boot {boot}: worker {worker} passed; boot before: worker {before} thrown away")
        }
        _ => format!("{} attempts failed: {}", record.attempts, shortened(&record.why)),
    };
    Line::new(format!("{:14} ", machine.name)).and(paint, format!("{word:8} ")).and(Paint::Plain, detail)
}
