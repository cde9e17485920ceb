//! The show: who joins when, what is done to whom, and when it is over.

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

use super::cast::{ATTEMPTS, Machine, Part, TAINT, cast};
use super::ending;
use super::eye::{Eye, Row};
use super::frame::{Frame, change_line, stamp};
use super::line::{Line, Paint};
use super::screen::Screen;
use super::second::Replacing;
use super::stage::Stage;
use crate::args::Demo;

/// A machine joins every so often.
const JOIN_EVERY: Duration = Duration::from_millis(800);
/// How often the table is drawn, and how soon the next thing to do is noticed.
const TICK: Duration = Duration::from_millis(100);
/// How long a worker is seen at work before its machine goes down.
const BEFORE_REBOOT: Duration = Duration::from_millis(700);
const DOWN_FOR: Duration = Duration::from_secs(2);
/// How long the failures are seen before one is healed.
const BEFORE_HEALING: Duration = Duration::from_secs(1);
/// Attempts of the machine that is healed, before it is.
const ATTEMPTS_BEFORE_HEALING: u32 = 2;
/// On a machine that is busy with something else everything takes longer. It must end all the same.
const PATIENCE: Duration = Duration::from_secs(90);

/// What is followed.
const COLLECTIONS: [&str; 6] = [
    "nodes",
    "pods",
    "events",
    "nodekeeper.dev/nodegates",
    "nodekeeper.dev/noderemediations",
    "nodekeeper.dev/remediationpolicies",
];

/// All of it.
pub struct Show {
    pub(super) stage: Stage,
    pub(super) machines: Vec<Machine>,
    to_join: VecDeque<Machine>,
    next_join: Instant,
    rebooting: Cue,
    restoring: Cue,
    healing: Cue,
    pub(super) eye: Eye,
    pub(super) second: Replacing,
    changes: ChangeWatch,
    screen: Screen,
    notes: Vec<Line>,
    start: Instant,
}

/// Something that is done once, some time after it has become possible.
#[derive(Default)]
struct Cue {
    possible: Option<Instant>,
    done: Option<Duration>,
}

impl Cue {
    /// Whether it is time now.
    fn is_due(&mut self, possible: bool, wait: Duration) -> bool {
        if !possible {
            self.possible = None;
        }
        let since = possible.then(|| *self.possible.get_or_insert_with(Instant::now));
        self.done.is_none() && since.is_some_and(|since| since.elapsed() >= wait)
    }
}

impl Show {
    /// Raises the curtain.
    pub async fn open(demo: &Demo, folder: &Path) -> Result<Self> {
        let stage = Stage::open(demo, folder).await?;
        let machines = cast();
        let audience = stage.cluster.local("demo");
        Ok(Self {
            eye: Eye::new(&machines, &audience),
            second: Replacing::default(),
            changes: audience.watch(&COLLECTIONS),
            to_join: machines.iter().cloned().collect(),
            next_join: Instant::now(),
            rebooting: Cue::default(),
            restoring: Cue::default(),
            healing: Cue::default(),
            screen: Screen::new(),
            notes: Vec::new(),
            start: Instant::now(),
            machines,
            stage,
        })
    }

    /// Plays it to its end, and says whether it was the right one.
    pub async fn tell(&mut self) -> Result<()> {
        if !self.screen.is_live() {
            self.screen.say(&Line::new(
                "Nodekeeper: a new node keeps its taint until a worker has proved its network.",
            ));
            self.screen.say(&Line::new(format!("The cluster listens on https://{}", self.stage.address)));
        }
        let count = self.machines.len();
        self.note(Paint::Plain, &format!("{count} machines join, each tainted {TAINT}"));
        let end = Instant::now() + PATIENCE;
        while !self.is_over() && !self.is_spoilt() && Instant::now() < end && self.stage.at_work() {
            self.direct().await?;
            self.wait_a_moment().await;
        }
        self.draw();
        self.screen.calm_down();
        let mut problems = ending::problems(&self.stage, &self.machines, &self.eye);
        if self.is_spoilt() {
            problems.push("a machine that is broken was let in".into());
        } else if !self.is_over() {
            problems.push("not all of it had happened by then".into());
        }
        for line in ending::summary(&self.machines, &self.eye, self.healing.done) {
            self.screen.say(&line);
        }
        let seconds = self.start.elapsed().as_secs_f64();
        if problems.is_empty() {
            let line = Line::default()
                .and(Paint::Green, format!("All of it ended as it should, after {seconds:.0} s."));
            self.screen.say(&line);
            return self.second_act().await;
        }
        let dead = if self.stage.at_work() { "" } else { "; the controller or a kubelet died" };
        bail!("not as it should be after {seconds:.0} s{dead}:\n  {}", problems.join("\n  "))
    }

    /// Leaves it up and says how to look around. Never ends by itself.
    pub async fn keep(&mut self) {
        let name = |part: Part| {
            self.machines
                .iter()
                .find(|machine| machine.part == part)
                .map_or("", |machine| machine.name.as_str())
        };
        let (broken, open) = (name(Part::NoApi), name(Part::Healthy));
        let path = self.stage.kubeconfig.display();
        let lines = [
            "\nThe cluster stays up, and the controller at work, until Ctrl-C. In another terminal:\n"
                .to_owned(),
            format!("  export KUBECONFIG={path}"),
            "  kubectl get nodes -L node-ready/verified,topology.kubernetes.io/zone".to_owned(),
            "  kubectl get nodegates".to_owned(),
            format!("  kubectl describe node {broken}"),
            format!("  kubectl events --for node/{broken}"),
            "  kubectl get events -A --watch".to_owned(),
            format!(
                "  kubectl get node {broken} -o jsonpath='{{.metadata.annotations.nodekeeper\\.dev/record}}'"
            ),
            "  kubectl get pods -n nodekeeper-system".to_owned(),
            "\nTaint an open node again, and see here how it is verified again:\n".to_owned(),
            format!("  kubectl taint node {open} node-ready/unverified=true:NoSchedule"),
            String::new(),
        ];
        for line in lines.iter().flat_map(|text| text.split('\n')) {
            self.screen.say(&Line::new(line));
        }
        loop {
            self.wait_a_moment().await;
        }
    }

    /// How long it has been on.
    pub(super) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Whether everybody who is needed is alive.
    pub(super) fn is_at_work(&self) -> bool {
        self.stage.at_work()
    }

    /// Whoever runs the cluster.
    pub(super) fn somebody(&self) -> Local {
        self.stage.cluster.local("demo")
    }

    pub(super) fn say_line(&self, line: &Line) {
        self.screen.say(line);
    }

    /// Whether a machine was let in.
    pub(super) fn is_open(&self, name: &str) -> bool {
        self.eye.tale(name).is_some_and(|tale| tale.open.is_some())
    }

    /// Clears the stage.
    pub async fn close(self) {
        drop(self.screen);
        self.stage.close().await;
    }

    /// Takes in what happened, or lets a moment pass in which nothing does.
    pub(super) async fn wait_a_moment(&mut self) {
        let moment = Instant::now() + TICK;
        while let Ok(changes) = timeout_at(moment, self.changes.next()).await {
            for change in changes {
                if let Some(row) = self.eye.take(&change) {
                    self.report(&row);
                }
                if let Some((paint, text)) = self.second.take(&change).filter(|_| !self.screen.is_live()) {
                    self.screen.say(&stamp(self.start.elapsed()).and(paint, text));
                }
            }
        }
        self.draw();
    }

    /// A line for each change where there is no table; what passes in a moment anyway is left out.
    fn report(&self, row: &Row) {
        let passing = row.state == State::Pending || (row.state == State::Unverified && row.attempts.0 == 0);
        if !self.screen.is_live() && !passing {
            self.screen.say(&change_line(row, self.start.elapsed()));
        }
    }

    fn note(&mut self, paint: Paint, text: &str) {
        // The star tells what the demo does from what the controller does.
        let line = stamp(self.start.elapsed()).and(paint, format!("* {text}"));
        if !self.screen.is_live() {
            self.screen.say(&line);
        }
        self.notes.push(line);
    }

    fn draw(&mut self) {
        if self.screen.is_live() {
            let frame = Frame {
                rows: &self.eye.rows(self.stage.cluster.clock().now()),
                machines: self.machines.len(),
                notes: &self.notes,
                elapsed: self.start.elapsed(),
            };
            let lines = frame.lines(Screen::height());
            self.screen.draw(&lines);
        }
    }

    /// Does what it is time for.
    async fn direct(&mut self) -> Result<()> {
        if Instant::now() >= self.next_join
            && let Some(machine) = self.to_join.pop_front()
        {
            self.next_join += JOIN_EVERY;
            self.join(&machine).await?;
        }
        let now = self.stage.cluster.clock().now();
        let looked_at = self.eye.part(Part::Rebooted, now).is_some_and(|row| row.state == State::InProgress);
        if self.rebooting.is_due(looked_at, BEFORE_REBOOT) {
            self.rebooting.done = Some(self.start.elapsed());
            self.reboot(now);
        }
        // Not before the worker is dead: it would find its connection cut, and say so.
        let is_back = self.eye.tale(&self.named(Part::Rebooted)).is_some_and(|tale| tale.boots.len() > 1);
        if self.restoring.is_due(is_back, Duration::ZERO) {
            self.restoring.done = Some(self.start.elapsed());
            self.stage.processes.endpoints(&self.named(Part::Rebooted)).await?.set_api(Api::Healthy);
        }
        if self.healing.is_due(self.all_failures_are_named(), BEFORE_HEALING) {
            self.healing.done = Some(self.start.elapsed());
            self.heal().await?;
        }
        Ok(())
    }

    pub(super) async fn join(&mut self, machine: &Machine) -> Result<()> {
        let network = self.stage.processes.endpoints(&machine.name).await?;
        machine.part.break_network(&network);
        self.stage.kubelets.join(machine.spec());
        if Part::BROKEN.contains(&machine.part) {
            self.note(Paint::Red, &format!("{} joins, and {}", machine.name, machine.part.trouble()));
        }
        Ok(())
    }

    fn reboot(&mut self, now: Timestamp) {
        let Some(row) = self.eye.part(Part::Rebooted, now) else { return };
        self.stage.kubelets.reboot(&row.name, DOWN_FOR);
        let (name, worker) = (row.name, row.worker);
        self.note(Paint::Yellow, &format!("{name} loses power while worker {worker} looks, and boots again"));
    }

    async fn heal(&mut self) -> Result<()> {
        let name = self.named(Part::SilentDns);
        self.stage.processes.endpoints(&name).await?.set_dns(Dns::Healthy);
        self.note(Paint::Green, &format!("somebody repairs the DNS of {name}; the controller is not told"));
        Ok(())
    }

    pub(super) fn named(&self, part: Part) -> String {
        let machine = self.machines.iter().find(|machine| machine.part == part);
        machine.map(|machine| machine.name.clone()).unwrap_or_default()
    }

    fn all_failures_are_named(&self) -> bool {
        let is_named = |part: Part| {
            let record = self.eye.record(part);
            record.verdict == Some(Verdict::Failed) && part.is_named_by(&record.why)
        };
        Part::BROKEN.into_iter().all(is_named)
            && self.eye.record(Part::SilentDns).attempts >= ATTEMPTS_BEFORE_HEALING
    }

    /// Everybody is where they should be: nothing more will happen.
    /// A machine that is broken was let in: whatever comes now, it did not end as it should.
    fn is_spoilt(&self) -> bool {
        let is_let_in = |part: Part| self.eye.record(part).verdict == Some(Verdict::Passed);
        self.healing.done.is_none() && is_let_in(Part::SilentDns) || Part::HOPELESS.into_iter().any(is_let_in)
    }

    fn is_over(&self) -> bool {
        let is_given_up = |part: Part| {
            let Record { attempts, verdict, .. } = self.eye.record(part);
            verdict == Some(Verdict::Failed) && attempts >= ATTEMPTS
        };
        self.to_join.is_empty()
            && self.rebooting.done.is_some()
            && self.healing.done.is_some()
            && self.eye.at_rest() == self.machines.len() - Part::HOPELESS.len()
            && Part::HOPELESS.into_iter().all(is_given_up)
    }
}
