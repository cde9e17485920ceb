//! A short dump of the cluster's state for failed tests.

use std::fmt::Write as _;

use anyhow::Result;
use nodekeeper_core::record::ANNOTATION;
use serde_json::Value;

use crate::real::Real;
use crate::shell::Worker;
use crate::world::{NAMESPACE, World as _};

/// Longer lines are truncated.
const WIDTH: usize = 400;
/// The newest Events per node.
const EVENTS: usize = 6;

impl Real {
    /// Taints, label, record, Events and workers with their reports of each node; then remediation, all pods, and the
    /// end of the controllers' logs.
    pub fn state(&self) -> String {
        let mut text = String::new();
        for node in self.nodes() {
            let lines =
                self.of_node(&node).unwrap_or_else(|error| vec![format!("cannot be read: {error:#}")]);
            write(&mut text, &node, &lines);
        }
        let remediation = self.lines("get remediationpolicies,noderemediations --output=wide");
        write(&mut text, "remediation", &remediation);
        let pods = self.lines("get pods --all-namespaces --output=wide");
        write(&mut text, "pods", &pods);
        let log = format!("logs -n {NAMESPACE} -l app.kubernetes.io/component=controller --prefix --tail=6");
        write(&mut text, "controllers", &self.lines(&log));
        text
    }

    fn of_node(&self, node: &str) -> Result<Vec<String>> {
        let seen = self.see(node)?;
        let record = &seen.0["metadata"]["annotations"][ANNOTATION];
        let mut lines = vec![
            format!(
                "gated {}, labelled {}, {}",
                seen.is_gated(),
                seen.is_labelled(),
                seen.0["spec"]["taints"]
            ),
            format!("record {}", record.as_str().unwrap_or("none")),
        ];
        let events = self.events_of(node)?;
        lines.extend(events.iter().skip(events.len().saturating_sub(EVENTS)).cloned());
        lines.extend(self.workers_on(node)?.iter().map(worker));
        Ok(lines)
    }

    /// The Events of a node, newest last.
    pub fn events_of(&self, node: &str) -> Result<Vec<String>> {
        let line = format!("get events -n default --field-selector=involvedObject.name={node}");
        let mut found = self.json(&line)?;
        let mut events = found["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
        events.retain(|event| {
            event["reportingComponent"].as_str().is_some_and(|who| who.contains("nodekeeper"))
        });
        events.sort_by_key(|event| event["eventTime"].as_str().unwrap_or_default().to_owned());
        let word = |event: &Value, key: &str| event[key].as_str().unwrap_or_default().to_owned();
        let format = |event: &Value| {
            format!("{} {}: {}", word(event, "eventTime"), word(event, "reason"), word(event, "message"))
        };
        Ok(events.iter().map(format).collect())
    }

    fn lines(&self, line: &str) -> Vec<String> {
        let said = self.quietly(line).unwrap_or_else(|error| format!("{error:#}"));
        said.lines().map(str::to_owned).collect()
    }
}

fn worker(worker: &Worker) -> String {
    let (phase, code) = (&worker.0["status"]["phase"], worker.exit_code());
    let found =
        worker.report().map_or_else(|error| format!("{error:#}"), |report| format!("{:?}", report.checks));
    format!("{} {phase}, exit code {code:?}: {found}", worker.name())
}

fn write(text: &mut String, heading: &str, lines: &[String]) {
    let _ = writeln!(text, "{heading}:");
    for line in lines {
        let short: String = line.chars().take(WIDTH).collect();
        let _ = writeln!(text, "  {short}");
    }
}
