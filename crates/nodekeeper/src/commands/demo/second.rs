//! The second act: one hopeless machine is replaced, another one is kept for somebody to look at, and an outage of DNS
//! replaces nobody.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use nodekeeper_sim::loopback::Dns;
use nodekeeper_sim::object::{at, condition, name, set, text};
use nodekeeper_sim::store::Change;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::cast::{Machine, Part};
use super::frame::stamp;
use super::line::{Line, Paint};
use super::show::Show;
use super::stage::CONTROLLER;

/// Wide enough for `SharedDependencyDown`.
const WORD: usize = 22;
/// Each of its scenes ends, however busy the machine is.
const PATIENCE: Duration = Duration::from_mins(2);
/// How many machines join while DNS is down.
const NEWCOMERS: usize = 2;

const REQUESTS: &str = "nodekeeper.dev/noderemediations";
const POLICIES: &str = "nodekeeper.dev/remediationpolicies";

/// What was seen of it.
#[derive(Default)]
pub struct Replacing {
    /// What was last told of each request, and of the policy.
    told: BTreeMap<String, String>,
    /// Names of the nodes that the controller deleted.
    pub deleted: BTreeSet<String>,
    /// Something does not work on nodes that work either.
    pub is_shared: bool,
}

impl Replacing {
    /// Takes a change in, and says what is worth a line.
    pub fn take(&mut self, change: &Change) -> Option<(Paint, String)> {
        match change.collection.as_str() {
            "nodes" if change.writer() == CONTROLLER => {
                self.deleted.extend(change.deleted().map(|node| name(node).to_owned()));
                None
            }
            REQUESTS => {
                let request = change.after.as_ref()?;
                let node = text(request, "spec.node.name").to_owned();
                let succeeded = condition(request, "Succeeded").filter(|one| text(one, "status") == "True");
                let told = succeeded.or_else(|| condition(request, "Approved"))?;
                self.news(&node, &node, told)
            }
            POLICIES => {
                let policy = change.after.as_ref()?;
                let shared = condition(policy, "SharedDependencyDown")?;
                self.is_shared = text(shared, "status") == "True";
                let told = if self.is_shared { shared } else { condition(policy, "Ready")? };
                self.news("policy", "policy", told)
            }
            _ => None,
        }
    }

    fn news(&mut self, key: &str, who: &str, condition: &Value) -> Option<(Paint, String)> {
        let word = text(condition, "reason").to_owned();
        let known = self.told.insert(key.to_owned(), word.clone());
        let paint = match word.as_str() {
            "Replaced" | "Enforcing" => Paint::Green,
            "WithinBudget" | "Comparing" => Paint::Cyan,
            _ => Paint::Yellow,
        };
        let line = format!("{who:14} {word:WORD$} {}", text(condition, "message"));
        (known.as_deref() != Some(&word)).then_some((paint, line))
    }
}

impl Show {
    /// Plays it, and says whether it was the right one.
    pub(super) async fn second_act(&mut self) -> Result<()> {
        self.say(Paint::Bold, "\nSecond act: replacing, and the brakes on it");
        self.replace_one().await?;
        self.survive_an_outage().await?;
        let seconds = self.elapsed().as_secs_f64();
        self.say(
            Paint::Green,
            &format!("One machine was replaced, and none for the outage, after {seconds:.0} s."),
        );
        Ok(())
    }

    async fn replace_one(&mut self) -> Result<()> {
        let (hopeless, kept) = (self.named(Part::NoApi), self.named(Part::Impostor));
        self.change_node(&kept, "nodekeeper.dev/do-not-disrupt", "true")?;
        self.announce(
            Paint::Yellow,
            &format!("{kept} is kept for somebody to look at: nodekeeper.dev/do-not-disrupt"),
        );
        let spec = json!({
            "enforcement": "Enforce", "deleteNodeObjectFor": [{"source": "Gate", "name": "default"}],
            "budget": {"maxGroupPercentPerHour": 20}, "controlGroup": {"size": 2, "recoverySeconds": 5},
        });
        let (version, kind) = ("nodekeeper.dev/v1alpha1", "RemediationPolicy");
        let policy =
            json!({"apiVersion": version, "kind": kind, "metadata": {"name": "default"}, "spec": spec});
        self.somebody().create(version, kind, "", policy)?;
        self.announce(
            Paint::Yellow,
            "somebody lets the controller replace nodes: RemediationPolicy, enforcement Enforce",
        );
        self.until("the hopeless machine is deleted", |show| show.second.deleted.contains(&hopeless)).await?;
        ensure!(self.second.deleted.len() == 1, "more than one was deleted: {:?}", self.second.deleted);
        let heir = self.machine("ip-10-0-1-250", &hopeless);
        self.announce(Paint::Green, &format!("the cloud makes {} in its place", heir.name));
        self.join(&heir).await?;
        self.until("its replacement is open", |show| show.is_open("ip-10-0-1-250")).await
    }

    async fn survive_an_outage(&mut self) -> Result<()> {
        self.announce(Paint::Red, "the DNS of all machines stops answering, and more machines join");
        self.all_dns(Dns::Drop).await?;
        // Another zone than that of the machine that was replaced: there, nodes were compared with just now.
        let near = self.named(Part::SilentDns);
        let names: Vec<String> = (0..NEWCOMERS).map(|n| format!("ip-10-0-3-{}", 240 + n)).collect();
        for name in &names {
            let machine = self.machine(name, &near);
            self.join(&machine).await?;
            self.stage.processes.endpoints(name).await?.set_dns(Dns::Drop);
        }
        self.until("it is seen that it is not the machines", |show| show.second.is_shared).await?;
        ensure!(self.second.deleted.len() == 1, "somebody was deleted for it: {:?}", self.second.deleted);
        self.announce(Paint::Green, "DNS answers again");
        self.all_dns(Dns::Healthy).await?;
        self.until("the machines that joined are open", |show| names.iter().all(|name| show.is_open(name)))
            .await?;
        ensure!(self.second.deleted.len() == 1, "somebody was deleted for it: {:?}", self.second.deleted);
        Ok(())
    }

    /// A machine in the zone of another.
    fn machine(&mut self, name: &str, near: &str) -> Machine {
        let zone = self.machines.iter().find(|machine| machine.name == near).map(|one| one.zone.clone());
        let machine = Machine { name: name.to_owned(), zone: zone.unwrap_or_default(), part: Part::Healthy };
        self.eye.meet(&machine);
        self.machines.push(machine.clone());
        machine
    }

    async fn all_dns(&mut self, dns: Dns) -> Result<()> {
        for machine in self.machines.clone() {
            self.stage.processes.endpoints(&machine.name).await?.set_dns(dns);
        }
        Ok(())
    }

    fn change_node(&self, node: &str, annotation: &str, value: &str) -> Result<()> {
        let somebody = self.somebody();
        let Some(node) = somebody.get("nodes", "", node) else { bail!("there is no node {node}") };
        let mut all = at(&node, "metadata.annotations").cloned().unwrap_or_else(|| json!({}));
        all[annotation] = json!(value);
        somebody.change(&node, None, |node| set(node, "metadata.annotations", all.clone()))?;
        Ok(())
    }

    fn announce(&mut self, paint: Paint, text: &str) {
        let line = stamp(self.elapsed()).and(paint, format!("* {text}"));
        self.say_line(&line);
    }

    fn say(&mut self, paint: Paint, text: &str) {
        for text in text.split('\n') {
            self.say_line(&Line::default().and(paint, text));
        }
    }

    async fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        while !is_so(self) {
            ensure!(Instant::now() < end && self.is_at_work(), "the second act did not go on: {what}");
            self.wait_a_moment().await;
        }
        Ok(())
    }
}
