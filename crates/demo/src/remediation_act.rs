//! The second act: a machine that never passes is replaced, another one is protected by an annotation, and an outage of
//! DNS replaces no machine.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use nodekeeper_sim::loopback::Dns;
use nodekeeper_sim::object::{at, condition, name, set, text};
use nodekeeper_sim::store::Change;
use nodekeeper_sim::value::{Value, json};
use tokio::time::Instant;

use crate::cluster::CONTROLLER;
use crate::line::{Line, Style};
use crate::machines::{Machine, Scenario};
use crate::runner::Runner;

/// Wide enough for `SharedDependencyDown`.
const REASON: usize = 22;
/// The longest time to wait for a step, for machines that are busy.
const STEP_TIMEOUT: Duration = Duration::from_mins(2);
/// How many machines join while DNS is down.
const JOINING: usize = 2;

/// The machine that is replaced, and the one that an annotation protects.
pub const REPLACED: Scenario = Scenario::ApiRefused;
pub const PROTECTED: Scenario = Scenario::WrongCertificate;

const REMEDIATIONS: &str = "nodekeeper.dev/noderemediations";
const POLICIES: &str = "nodekeeper.dev/remediationpolicies";

/// Follows remediations and the policy.
#[derive(Default)]
pub struct RemediationObserver {
    /// The last reason that was shown for each node, and for the policy.
    shown: BTreeMap<String, String>,
    /// Names of the nodes that the controller deleted.
    pub deleted: BTreeSet<String>,
    /// Whether the policy reports a shared outage.
    pub shared_outage: bool,
}

impl RemediationObserver {
    /// Applies a change; returns a line if a reason changed.
    pub fn apply(&mut self, change: &Change) -> Option<Line> {
        match change.collection.as_str() {
            "nodes" if change.writer() == CONTROLLER => {
                self.deleted.extend(change.deleted().map(|node| name(node).to_owned()));
                None
            }
            REMEDIATIONS => {
                let remediation = change.after.as_ref()?;
                let node = text(remediation, "spec.node.name").to_owned();
                let succeeded =
                    condition(remediation, "Succeeded").filter(|one| text(one, "status") == "True");
                self.line(&node, succeeded.or_else(|| condition(remediation, "Approved"))?)
            }
            POLICIES => {
                let policy = change.after.as_ref()?;
                let outage = condition(policy, "SharedDependencyDown")?;
                self.shared_outage = text(outage, "status") == "True";
                self.line("policy", if self.shared_outage { outage } else { condition(policy, "Ready")? })
            }
            _ => None,
        }
    }

    fn line(&mut self, name: &str, condition: &Value) -> Option<Line> {
        let reason = text(condition, "reason").to_owned();
        let known = self.shown.insert(name.to_owned(), reason.clone());
        let style = match reason.as_str() {
            "Replaced" | "Enforcing" | "NodeRecovered" => Style::Green,
            "WithinBudget" | "Comparing" => Style::Cyan,
            _ => Style::Yellow,
        };
        (known.as_ref() != Some(&reason)).then(|| {
            Line::new(format!("{name:14} "))
                .with(style, format!("{reason:REASON$} "))
                .with(Style::Plain, text(condition, "message"))
        })
    }
}

impl Runner {
    /// Runs the second act.
    pub(super) async fn run_remediation_act(&mut self) -> Result<()> {
        self.start_second_act();
        self.replace_one().await?;
        self.survive_outage().await?;
        self.finish_act();
        let seconds = self.elapsed().as_secs_f64();
        let text =
            format!("Second act done after {seconds:.0} s: one machine was replaced, none for the outage.");
        self.print(&Line::default().with(Style::Green, text));
        Ok(())
    }

    async fn replace_one(&mut self) -> Result<()> {
        let (failing, protected) = (self.name_of(REPLACED), self.name_of(PROTECTED));
        self.annotate_node(&protected, "nodekeeper.dev/do-not-disrupt", "true")?;
        self.note(
            Style::Yellow,
            &format!("{protected} must not be replaced: it gets the annotation do-not-disrupt"),
        );
        let spec = json!({
            "enforcement": "Enforce", "deleteNodeObjectFor": [{"source": "Gate", "name": "default"}],
            "budget": {"maxGroupPercentPerHour": 20}, "controlGroup": {"size": 2, "recoverySeconds": 5},
        });
        let (version, kind) = ("nodekeeper.dev/v1alpha1", "RemediationPolicy");
        let policy =
            json!({"apiVersion": version, "kind": kind, "metadata": {"name": "default"}, "spec": spec});
        self.admin().create(version, kind, "", policy)?;
        self.note(Style::Yellow, "a RemediationPolicy with enforcement Enforce permits replacements");
        self.until("the failing machine is deleted", |runner| runner.remediation.deleted.contains(&failing))
            .await?;
        self.ensure_one_deleted()?;
        let replacement = self.add_machine("ip-10-0-1-250", &failing);
        self.note(
            Style::Green,
            &format!("the cloud provider creates {} as its replacement", replacement.name),
        );
        self.join(&replacement).await?;
        self.until("the replacement is verified", |runner| runner.is_verified("ip-10-0-1-250")).await
    }

    async fn survive_outage(&mut self) -> Result<()> {
        self.note(Style::Red, "the DNS of all machines stops answering, and more machines join");
        self.set_all_dns(Dns::Drop).await?;
        // In another zone than the replaced machine: the control nodes of that one were verified a moment ago.
        let near = self.name_of(Scenario::SilentDns);
        let names: Vec<String> = (0..JOINING).map(|n| format!("ip-10-0-3-{}", 240 + n)).collect();
        for name in &names {
            let machine = self.add_machine(name, &near);
            self.join(&machine).await?;
            self.cluster.processes.endpoints(name).await?.set_dns(Dns::Drop);
        }
        self.until("the policy reports a shared outage", |runner| runner.remediation.shared_outage).await?;
        self.ensure_one_deleted()?;
        self.note(Style::Green, "DNS answers again");
        self.set_all_dns(Dns::Healthy).await?;
        self.until("the new machines are verified", |runner| {
            names.iter().all(|name| runner.is_verified(name))
        })
        .await?;
        self.ensure_one_deleted()
    }

    fn ensure_one_deleted(&self) -> Result<()> {
        let deleted = &self.remediation.deleted;
        ensure!(deleted.len() == 1, "exactly one node should be deleted: {deleted:?}");
        Ok(())
    }

    /// Adds a healthy machine in the zone of another.
    fn add_machine(&mut self, name: &str, near: &str) -> Machine {
        let zone = self.machines.iter().find(|machine| machine.name == near).map(|one| one.zone.clone());
        let machine =
            Machine { name: name.to_owned(), zone: zone.unwrap_or_default(), scenario: Scenario::Healthy };
        self.observer.add_machine(&machine);
        self.machines.push(machine.clone());
        machine
    }

    async fn set_all_dns(&mut self, dns: Dns) -> Result<()> {
        for machine in &self.machines {
            self.cluster.processes.endpoints(&machine.name).await?.set_dns(dns);
        }
        Ok(())
    }

    fn annotate_node(&self, node: &str, annotation: &str, value: &str) -> Result<()> {
        let admin = self.admin();
        let Some(node) = admin.get("nodes", "", node) else { bail!("there is no node {node}") };
        let mut all = at(&node, "metadata.annotations").cloned().unwrap_or_else(|| json!({}));
        all[annotation] = json!(value);
        admin.change(&node, None, |node| set(node, "metadata.annotations", all.clone()))?;
        Ok(())
    }

    async fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) -> Result<()> {
        let end = Instant::now() + STEP_TIMEOUT;
        while !is_so(self) {
            ensure!(Instant::now() < end && self.is_running(), "the second act got stuck before: {what}");
            self.tick().await;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u09_the_second_act_is_coloured_and_fits_80_columns() {
        let mut observer = RemediationObserver::default();
        let message = "2 verified nodes of zone eu-central-1c run the checks of gate default for comparison";
        for (reason, colour) in [("Replaced", "32"), ("Comparing", "36"), ("SharedDependencyDown", "33")] {
            let condition = json!({"reason": reason, "message": message});
            let line = observer.line("ip-10-0-1-250", &condition).expect("it is new");
            assert!(line.render(80, true).contains(&format!("\x1b[{colour}m{reason}")), "{line:?}");
            assert_eq!(line.render(80, false).chars().count(), 80);
            assert_eq!(observer.line("ip-10-0-1-250", &condition), None, "it is shown already");
        }
    }
}
