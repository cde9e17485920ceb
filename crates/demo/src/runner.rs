//! Runs the demo: which machine joins when, which faults are injected and repaired, and when it ends.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use jiff::Timestamp;
use nodekeeper_core::gate::State;
use nodekeeper_core::record::Record;
use nodekeeper_core::report::Verdict;
use nodekeeper_sim::cluster::{ChangeWatch, Local};
use nodekeeper_sim::loopback::{Api, Dns};
use tokio::time::{Instant, timeout_at};

use crate::Demo;
use crate::cluster::DemoCluster;
use crate::frame::{Frame, change_line, timestamp};
use crate::line::{Line, Style};
use crate::machines::{ATTEMPTS, Machine, Scenario, TAINT, machines};
use crate::observer::{Observer, Row};
use crate::remediation_act::{PROTECTED, RemediationObserver};
use crate::screen::Screen;
use crate::verify;

const JOIN_EVERY: Duration = Duration::from_millis(800);
/// How often the table is drawn and the next step is checked.
const TICK: Duration = Duration::from_millis(100);
/// How long the worker runs before its machine reboots.
const BEFORE_REBOOT: Duration = Duration::from_millis(700);
const DOWN_FOR: Duration = Duration::from_secs(2);
/// How long the failures are shown before one is repaired.
const BEFORE_REPAIR: Duration = Duration::from_secs(1);
/// Failed attempts of the machine that is repaired, before the repair.
const ATTEMPTS_BEFORE_REPAIR: u32 = 2;
/// The longest duration of the first act, for machines that are busy.
const TIMEOUT: Duration = Duration::from_secs(90);

const TITLE: &str = "A new node keeps its taint until a worker has verified its network.";
const SECOND_TITLE: &str = "Second act: remediation, and what limits it.";

/// The collections that the demo watches.
const COLLECTIONS: [&str; 6] = [
    "nodes",
    "pods",
    "events",
    "nodekeeper.dev/nodegates",
    "nodekeeper.dev/noderemediations",
    "nodekeeper.dev/remediationpolicies",
];

pub struct Runner {
    pub(super) cluster: DemoCluster,
    pub(super) machines: Vec<Machine>,
    to_join: VecDeque<Machine>,
    next_join: Instant,
    reboot: Step,
    restore_api: Step,
    repair_dns: Step,
    pub(super) observer: Observer,
    pub(super) remediation: RemediationObserver,
    changes: ChangeWatch,
    screen: Screen,
    second_act: bool,
    /// Both acts are over, and the cluster is kept.
    keeps: bool,
    notes: Vec<Line>,
    start: Instant,
}

/// A step that runs once, some time after its condition became true.
#[derive(Default)]
struct Step {
    possible: Option<Instant>,
    done: Option<Duration>,
}

impl Step {
    fn is_due(&mut self, possible: bool, wait: Duration) -> bool {
        if !possible {
            self.possible = None;
        }
        let since = possible.then(|| *self.possible.get_or_insert_with(Instant::now));
        self.done.is_none() && since.is_some_and(|since| since.elapsed() >= wait)
    }
}

impl Runner {
    pub async fn start(demo: &Demo, folder: &Path) -> Result<Self> {
        let cluster = DemoCluster::start(demo, folder).await?;
        let machines = machines();
        let client = cluster.cluster.local("demo");
        Ok(Self {
            observer: Observer::new(&machines, &client),
            remediation: RemediationObserver::default(),
            changes: client.watch(&COLLECTIONS),
            to_join: machines.iter().cloned().collect(),
            next_join: Instant::now(),
            reboot: Step::default(),
            restore_api: Step::default(),
            repair_dns: Step::default(),
            screen: Screen::new(),
            second_act: false,
            keeps: false,
            notes: Vec::new(),
            start: Instant::now(),
            machines,
            cluster,
        })
    }

    /// Runs both acts. An error says what did not end as expected.
    pub async fn run(&mut self) -> Result<()> {
        if !self.screen.is_live() {
            self.print(&Line::new(format!("Nodekeeper: {TITLE}")));
            self.print(&Line::new(format!("The API server listens on https://{}", self.cluster.address)));
        }
        let count = self.machines.len();
        self.note(Style::Plain, &format!("{count} machines join, each with the taint {TAINT}"));
        let end = Instant::now() + TIMEOUT;
        while !self.is_over() && !self.has_wrong_result() && Instant::now() < end && self.is_running() {
            self.next_steps().await?;
            self.tick().await;
        }
        self.finish_act();
        let mut problems = verify::problems(&self.cluster, &self.machines, &self.observer);
        if self.has_wrong_result() {
            problems.push("a broken machine was verified".into());
        } else if !self.is_over() {
            problems.push("the first act timed out".into());
        }
        for line in verify::summary(&self.machines, &self.observer, self.repair_dns.done) {
            self.print(&line);
        }
        let seconds = self.start.elapsed().as_secs_f64();
        if problems.is_empty() {
            let text = format!("First act done after {seconds:.0} s: every machine ended as expected.");
            self.print(&Line::default().with(Style::Green, text));
            return self.run_remediation_act().await;
        }
        let dead = if self.is_running() { "" } else { "; the controller or a kubelet died" };
        bail!("not as expected after {seconds:.0} s{dead}:\n  {}", problems.join("\n  "))
    }

    /// Prints what to try with kubectl, and keeps the cluster running until the future is dropped.
    pub async fn keep(&mut self) {
        let lines = hints(&self.machines, &self.cluster.kubeconfig);
        for line in lines.iter().flat_map(|text| text.split('\n')) {
            self.screen.print_uncut(&Line::new(line));
        }
        self.keeps = true;
        loop {
            self.tick().await;
        }
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Returns whether the controller and the kubelets still run.
    pub(super) fn is_running(&self) -> bool {
        self.cluster.is_running()
    }

    /// Returns a client with all rights.
    pub(super) fn admin(&self) -> Local {
        self.cluster.cluster.local("demo")
    }

    pub(super) fn print(&self, line: &Line) {
        self.screen.print(line);
    }

    pub(super) fn is_verified(&self, name: &str) -> bool {
        self.observer.history(name).is_some_and(|history| history.verified.is_some())
    }

    /// Starts the second act with a new table below what was printed so far.
    pub(super) fn start_second_act(&mut self) {
        self.second_act = true;
        self.notes.clear();
        self.print(&Line::default());
        self.screen.start_live();
        if !self.screen.is_live() {
            self.print(&Line::default().with(Style::Bold, SECOND_TITLE));
        }
    }

    /// Leaves the last table on the screen.
    pub(super) fn finish_act(&mut self) {
        self.draw();
        self.screen.stop_live();
    }

    pub async fn stop(self) {
        drop(self.screen);
        self.cluster.stop().await;
    }

    /// Applies the changes of one tick, and draws the table.
    pub(super) async fn tick(&mut self) {
        let end = Instant::now() + TICK;
        while let Ok(changes) = timeout_at(end, self.changes.next()).await {
            for change in changes {
                if let Some(row) = self.observer.apply(&change) {
                    self.print_change(&row);
                }
                // The table of the first act has no room for remediations, which are dry runs there.
                let is_shown = self.second_act || !self.screen.is_live();
                if let Some(line) = self.remediation.apply(&change).filter(|_| is_shown) {
                    let line = timestamp(self.start.elapsed()).join(line);
                    self.add_note(line);
                }
            }
        }
        self.draw();
    }

    /// Prints a change of state if there is no table. States that last milliseconds are left out, and in a cluster that is
    /// kept also the attempts of a machine that will never pass: they would push the hints off the screen.
    fn print_change(&self, row: &Row) {
        let is_brief = row.state == State::Pending || (row.state == State::Unverified && row.attempts.0 == 0);
        let is_hopeless = self.keeps && row.state != State::Verified && row.attempts.0 > row.attempts.1;
        if !self.screen.is_live() && !is_brief && !is_hopeless {
            self.print(&change_line(row, self.start.elapsed()));
        }
    }

    /// Shows what the demo does; the star tells it from what the controller does.
    pub(super) fn note(&mut self, style: Style, text: &str) {
        self.add_note(timestamp(self.start.elapsed()).with(style, format!("* {text}")));
    }

    fn add_note(&mut self, line: Line) {
        if !self.screen.is_live() {
            self.print(&line);
        }
        self.notes.push(line);
    }

    fn draw(&mut self) {
        if self.screen.is_live() {
            let (title, max_notes) = if self.second_act { (SECOND_TITLE, 10) } else { (TITLE, 4) };
            let frame = Frame {
                title,
                rows: &self.observer.rows(self.cluster.cluster.clock().now()),
                machines: self.machines.len(),
                notes: &self.notes,
                max_notes,
                elapsed: self.start.elapsed(),
            };
            let lines = frame.lines(Screen::height());
            self.screen.draw(&lines);
        }
    }

    /// Runs the steps that are due.
    async fn next_steps(&mut self) -> Result<()> {
        if Instant::now() >= self.next_join
            && let Some(machine) = self.to_join.pop_front()
        {
            self.next_join += JOIN_EVERY;
            self.join(&machine).await?;
        }
        let now = self.cluster.cluster.clock().now();
        let runs =
            self.observer.scenario(Scenario::Rebooted, now).is_some_and(|row| row.state == State::InProgress);
        if self.reboot.is_due(runs, BEFORE_REBOOT) {
            self.reboot.done = Some(self.start.elapsed());
            self.reboot_machine(now);
        }
        // After the worker was killed: otherwise it would report the closed connection.
        let is_back = self
            .observer
            .history(&self.name_of(Scenario::Rebooted))
            .is_some_and(|history| history.boots.len() > 1);
        if self.restore_api.is_due(is_back, Duration::ZERO) {
            self.restore_api.done = Some(self.start.elapsed());
            self.cluster.processes.endpoints(&self.name_of(Scenario::Rebooted)).await?.set_api(Api::Healthy);
        }
        if self.repair_dns.is_due(self.all_failures_are_recorded(), BEFORE_REPAIR) {
            self.repair_dns.done = Some(self.start.elapsed());
            self.repair().await?;
        }
        Ok(())
    }

    pub(super) async fn join(&mut self, machine: &Machine) -> Result<()> {
        let network = self.cluster.processes.endpoints(&machine.name).await?;
        machine.scenario.inject_fault(&network);
        self.cluster.kubelets.join(machine.spec());
        if Scenario::BROKEN.contains(&machine.scenario) {
            self.note(Style::Red, &format!("{} joins: {}", machine.name, machine.scenario.description()));
        }
        Ok(())
    }

    fn reboot_machine(&mut self, now: Timestamp) {
        let Some(row) = self.observer.scenario(Scenario::Rebooted, now) else { return };
        self.cluster.kubelets.reboot(&row.name, DOWN_FOR);
        let (name, worker) = (row.name, row.worker);
        self.note(Style::Yellow, &format!("{name} loses power while worker {worker} runs, and reboots"));
    }

    async fn repair(&mut self) -> Result<()> {
        let name = self.name_of(Scenario::SilentDns);
        self.cluster.processes.endpoints(&name).await?.set_dns(Dns::Healthy);
        self.note(
            Style::Green,
            &format!("the DNS server of {name} is repaired; the controller is not notified"),
        );
        Ok(())
    }

    pub(super) fn name_of(&self, scenario: Scenario) -> String {
        let machine = self.machines.iter().find(|machine| machine.scenario == scenario);
        machine.map(|machine| machine.name.clone()).unwrap_or_default()
    }

    fn all_failures_are_recorded(&self) -> bool {
        let is_recorded = |scenario: Scenario| {
            let record = self.observer.record(scenario);
            record.verdict == Some(Verdict::Failed) && scenario.matches_failure(&record.why)
        };
        Scenario::BROKEN.into_iter().all(is_recorded)
            && self.observer.record(Scenario::SilentDns).attempts >= ATTEMPTS_BEFORE_REPAIR
    }

    /// Returns whether a broken machine was verified.
    fn has_wrong_result(&self) -> bool {
        let passed = |scenario: Scenario| self.observer.record(scenario).verdict == Some(Verdict::Passed);
        self.repair_dns.done.is_none() && passed(Scenario::SilentDns)
            || Scenario::UNREPAIRED.into_iter().any(passed)
    }

    /// Returns whether every machine is in its final state.
    fn is_over(&self) -> bool {
        let has_failed = |scenario: Scenario| {
            let Record { attempts, verdict, .. } = self.observer.record(scenario);
            verdict == Some(Verdict::Failed) && attempts >= ATTEMPTS
        };
        self.to_join.is_empty()
            && self.reboot.done.is_some()
            && self.repair_dns.done.is_some()
            && self.observer.count_finished() == self.machines.len() - Scenario::UNREPAIRED.len()
            && Scenario::UNREPAIRED.into_iter().all(has_failed)
    }
}

/// Returns what to try with kubectl.
fn hints(machines: &[Machine], kubeconfig: &Path) -> [String; 11] {
    let name_of = |scenario: Scenario| {
        let machine = machines.iter().find(|machine| machine.scenario == scenario);
        machine.map_or("", |machine| machine.name.as_str())
    };
    // The second act deletes another machine that is broken.
    let (broken, verified) = (name_of(PROTECTED), name_of(Scenario::Healthy));
    [
        "\nThe cluster and the controller run until Ctrl-C. In another terminal:\n".to_owned(),
        format!("  export KUBECONFIG={}", kubeconfig.display()),
        "  kubectl get nodes -L node-ready/verified,topology.kubernetes.io/zone".to_owned(),
        "  kubectl get nodegates,remediationpolicies,noderemediations".to_owned(),
        format!("  kubectl describe node {broken}"),
        format!("  kubectl events --for node/{broken}"),
        format!("  kubectl annotate node {broken} --list"),
        "  kubectl get events -A --watch".to_owned(),
        "  kubectl get pods -n nodekeeper-system".to_owned(),
        "\nTaint a verified node again, and watch here how it is verified again:\n".to_owned(),
        format!("  kubectl taint node {verified} node-ready/unverified=true:NoSchedule\n"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remediation_act::REPLACED;

    #[test]
    fn u09_hints_fit_80_columns_and_name_machines_that_exist() {
        let machines = machines();
        let hints = hints(&machines, Path::new("/tmp/nodekeeper-demo-AbCdEf/kubeconfig")).join("\n");
        let replaced = machines.iter().find(|machine| machine.scenario == REPLACED).expect("one");
        assert!(!hints.contains(&replaced.name), "the second act deletes it: {hints}");
        let named: Vec<&str> = hints.split([' ', '/', '\n']).filter(|word| word.starts_with("ip-")).collect();
        assert_eq!(named.len(), 4);
        assert!(named.iter().all(|name| machines.iter().any(|machine| machine.name == *name)), "{named:?}");
        assert!(hints.lines().all(|line| line.chars().count() <= 80), "{hints}");
    }
}
