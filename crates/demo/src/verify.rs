//! Verifies the result of the demo from the objects in the cluster, and summarizes it.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use nodekeeper_core::node::NodeView;
use nodekeeper_core::record::Record;
use nodekeeper_core::report::Verdict;
use nodekeeper_core::worker::WorkerView;
use nodekeeper_sim::object::namespace;

use crate::cluster::{DemoCluster, NAMESPACE};
use crate::line::{Line, Style};
use crate::machines::{ATTEMPTS, LABEL, Machine, Scenario, TAINT};
use crate::observer::{History, Observer, shortened};

/// Returns what is wrong; empty if the demo ended as expected.
pub fn problems(demo: &DemoCluster, machines: &[Machine], observer: &Observer) -> Vec<String> {
    let cluster = demo.cluster.local("demo");
    let pods = cluster.all("pods");
    let workers: Vec<WorkerView> = pods
        .iter()
        .filter(|pod| namespace(pod) == NAMESPACE)
        .filter_map(|pod| WorkerView::new(&pod.decode().ok()?))
        .collect();
    let mut problems = Vec::new();
    for machine in machines {
        let node = cluster.get("nodes", "", &machine.name);
        let Some(node) = node.and_then(|node| node.decode().ok()) else {
            problems.push(format!("{}: the node does not exist", machine.name));
            continue;
        };
        let node = NodeView::new(&node);
        let left = workers.iter().filter(|worker| worker.identity.node_uid == node.uid).count();
        let wrong = if Scenario::UNREPAIRED.contains(&machine.scenario) {
            check_tainted(machine.scenario, &node)
        } else {
            check_verified(&node, left)
        };
        let wrong = wrong.or_else(|| match machine.scenario {
            Scenario::Rebooted => check_rebooted(&node, observer.history(&machine.name)?),
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

fn check_verified(node: &NodeView, workers_left: usize) -> Option<String> {
    let Record { verdict, why, scope, .. } = record(node);
    if is_tainted(node) {
        Some(format!("it should be verified, but has the taint {TAINT}: {why}"))
    } else if node.labels.get(LABEL).is_none_or(|value| value != "true") {
        Some(format!("it has no taint, but not the label {LABEL}=true either"))
    } else if verdict != Some(Verdict::Passed) {
        Some(format!("it has no taint, but its record does not say Passed: {why}"))
    } else if scope.boot_id != node.boot_id {
        Some("its taint was removed by a verdict about another boot".into())
    } else if workers_left > 0 {
        Some(format!("it is verified, but {workers_left} of its worker pods still exist"))
    } else {
        None
    }
}

fn check_tainted(scenario: Scenario, node: &NodeView) -> Option<String> {
    let Record { verdict, why, attempts, .. } = record(node);
    if !is_tainted(node) {
        Some("it is broken, but its taint was removed".into())
    } else if node.labels.get(LABEL).is_some() {
        Some(format!("it is broken, but has the label {LABEL}"))
    } else if verdict != Some(Verdict::Failed) || !scenario.matches_failure(&why) {
        Some(format!("{}, but its record says: {why}", scenario.description()))
    } else if attempts < ATTEMPTS {
        Some(format!("only {attempts} attempts are recorded"))
    } else {
        None
    }
}

fn check_rebooted(node: &NodeView, history: &History) -> Option<String> {
    match history.boots.as_slice() {
        [first, .., last] if first != last && node.boot_id == **last => None,
        boots => Some(format!("it should have booted twice; its boot IDs are {boots:?}")),
    }
}

/// Returns the summary of the first act.
pub fn summary(machines: &[Machine], observer: &Observer, healed: Option<Duration>) -> Vec<Line> {
    let mut lines = vec![Line::default()];
    lines.extend(healthy(machines, observer));
    for machine in machines.iter().filter(|machine| machine.scenario != Scenario::Healthy) {
        lines.push(special(machine, observer, healed));
    }
    let writes = &observer.writes;
    lines.push(Line::default());
    lines.push(Line::new(format!(
        "{} writes: {} pods created, {} deleted, {} node patches, {} Events.",
        writes.total(),
        writes.pods_created,
        writes.pods_deleted,
        writes.node_patches,
        writes.events
    )));
    lines
}

fn seconds(times: &[SignedDuration], at: usize) -> String {
    times.get(at).map_or_else(|| "-".into(), |time| format!("{:.1} s", time.as_secs_f64()))
}

fn healthy(machines: &[Machine], observer: &Observer) -> [Line; 3] {
    let healthy: Vec<&Machine> =
        machines.iter().filter(|machine| machine.scenario == Scenario::Healthy).collect();
    let verified = |machine: &&Machine| {
        let history = observer.history(&machine.name)?;
        Some(duration(history.ready?, history.verified?))
    };
    let mut times: Vec<SignedDuration> = healthy.iter().filter_map(verified).collect();
    times.sort_unstable();
    let writes: u32 = healthy.iter().map(|machine| observer.writes.for_node(&machine.name)).sum();
    let count = healthy.len();
    let per_node = f64::from(writes) / f64::from(u32::try_from(count.max(1)).unwrap_or(u32::MAX));
    let heading = "            from Ready to verified:   fastest   median  slowest writes per node";
    let row = format!(
        "{:2} of {count:2} healthy nodes verified     {:>9} {:>8} {:>8} {per_node:>15.1}",
        times.len(),
        seconds(&times, 0),
        seconds(&times, times.len() / 2),
        seconds(&times, times.len().saturating_sub(1)),
    );
    let style = if times.len() == count { Style::Green } else { Style::Red };
    [Line::default().with(Style::Dim, heading), Line::default().with(style, row), Line::default()]
}

fn duration(from: Timestamp, to: Timestamp) -> SignedDuration {
    to.duration_since(from)
}

/// Returns the line about a machine that is not healthy.
fn special(machine: &Machine, observer: &Observer, healed: Option<Duration>) -> Line {
    let record = observer.record(machine.scenario);
    let history = observer.history(&machine.name).cloned().unwrap_or_default();
    let is_verified = history.verified.is_some();
    let (style, word) = if is_verified { (Style::Green, "verified") } else { (Style::Red, "tainted") };
    let detail = match machine.scenario {
        Scenario::SilentDns if is_verified => {
            let at = healed.unwrap_or_default().as_secs_f64();
            format!("attempt {} passed; DNS did not answer until {at:.1} s", record.attempts)
        }
        Scenario::Rebooted if is_verified => {
            let (worker, boot) = (record.number, history.boots.len().saturating_sub(1));
            let workers: Vec<String> = history.discarded.iter().map(ToString::to_string).collect();
            let before = if workers.is_empty() { "none".into() } else { workers.join(", ") };
            format!("worker {worker} passed; worker {before} of boot {boot} was discarded")
        }
        _ => format!("{} attempts failed: {}", record.attempts, shortened(&record.why)),
    };
    Line::new(format!("{:14} ", machine.name)).with(style, format!("{word:9} ")).with(Style::Plain, detail)
}
