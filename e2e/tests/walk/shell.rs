//! Runs commands and waits for their results.

use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nodekeeper_core::record::{ANNOTATION, Record};
use nodekeeper_core::report::{self, Report};
use nodekeeper_core::worker::CONTAINER;
use serde_json::Value;

use crate::real::Real;
use crate::world::{LABEL, TAINT, World as _};

pub fn heading(text: &str) {
    println!("\n## {text}");
}

impl Real {
    /// Runs a command and prints its output. Words are separated by spaces.
    pub fn show(&self, line: &str) -> Result<String> {
        let said = self.kubectl(line)?;
        print!("{said}");
        Ok(said)
    }

    pub fn kubectl(&self, line: &str) -> Result<String> {
        println!("$ kubectl {line}");
        self.quietly(line)
    }

    pub fn quietly(&self, line: &str) -> Result<String> {
        self.cluster.run_kubectl(&line.split_whitespace().collect::<Vec<_>>())
    }

    pub fn json(&self, line: &str) -> Result<Value> {
        Ok(serde_json::from_str(&self.quietly(&format!("{line} --output=json"))?)?)
    }

    pub fn until<T>(&self, what: &str, mut ask: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        let end = Instant::now() + self.patience();
        loop {
            if let Some(answer) = ask().with_context(|| format!("waiting for {what}"))? {
                return Ok(answer);
            }
            if Instant::now() > end {
                bail!("waited {:?} for {what}", self.patience());
            }
            sleep(Duration::from_millis(200));
        }
    }

    pub fn see(&self, node: &str) -> Result<Seen> {
        Ok(Seen(self.json(&format!("get node {node}"))?))
    }

    pub fn workers_on(&self, node: &str) -> Result<Vec<Worker>> {
        self.pods("worker", Some(node)).map(|pods| pods.into_iter().map(Worker).collect())
    }

    /// The pods of a component on one or all nodes.
    pub fn pods(&self, component: &str, node: Option<&str>) -> Result<Vec<Value>> {
        let line = format!("get pods -n nodekeeper-system -l app.kubernetes.io/component={component}");
        let mut found = self.json(&line)?;
        let Value::Array(mut pods) = found["items"].take() else { bail!("no list: {found}") };
        pods.retain(|pod| node.is_none_or(|node| pod["spec"]["nodeName"] == node));
        Ok(pods)
    }

    /// The sum over all controllers of metrics with this prefix and these words in their labels.
    pub fn metric(&self, name: &str, words: &[&str]) -> Result<f64> {
        let mut sum = 0.0;
        for pod in self.pods("controller", None)? {
            let pod = pod["metadata"]["name"].as_str().context("a pod without a name")?;
            let path = format!("/api/v1/namespaces/nodekeeper-system/pods/{pod}:8080/proxy/metrics");
            for line in self.quietly(&format!("get --raw {path}"))?.lines() {
                if line.starts_with(name) && words.iter().all(|word| line.contains(&format!("\"{word}\""))) {
                    sum += line.rsplit(' ').next().context("a line without a number")?.parse::<f64>()?;
                }
            }
        }
        Ok(sum)
    }
}

pub struct Seen(pub Value);

impl Seen {
    pub fn is_gated(&self) -> bool {
        let taints = self.0["spec"]["taints"].as_array();
        taints.is_some_and(|taints| taints.iter().any(|taint| taint["key"] == TAINT))
    }

    pub fn is_labelled(&self) -> bool {
        self.0["metadata"]["labels"][LABEL] == "true"
    }

    pub fn is_open(&self) -> bool {
        !self.is_gated() && self.is_labelled()
    }

    pub fn record(&self) -> Option<Record> {
        let metadata = &self.0["metadata"];
        Record::read(metadata["annotations"][ANNOTATION].as_str(), metadata["uid"].as_str()?)
    }

    /// The number of workers so far.
    pub fn number(&self) -> u32 {
        self.record().map_or(0, |record| record.number)
    }

    pub fn boot_id(&self) -> String {
        self.0["status"]["nodeInfo"]["bootID"].as_str().unwrap_or_default().to_owned()
    }
}

pub struct Worker(pub Value);

impl Worker {
    pub fn name(&self) -> &str {
        self.0["metadata"]["name"].as_str().unwrap_or_default()
    }

    pub fn container(&self, name: &str) -> &Value {
        let all = self.0["status"]["containerStatuses"].as_array();
        all.into_iter().flatten().find(|one| one["name"] == name).unwrap_or(&Value::Null)
    }

    pub fn exit_code(&self) -> Option<i64> {
        self.container(CONTAINER)["state"]["terminated"]["exitCode"].as_i64()
    }

    pub fn report(&self) -> Result<Report> {
        let message = self.container(CONTAINER)["state"]["terminated"]["message"].as_str();
        Ok(report::parse(message.context("it left no report")?)?)
    }
}

/// A `kubectl … --watch` in the background that keeps its output.
pub struct Watching<'a> {
    child: Child,
    file: std::path::PathBuf,
    world: &'a Real,
}

impl<'a> Watching<'a> {
    /// Starts, and returns after the first line. Only one per kind at a time.
    pub fn start(world: &'a Real, words: &[&str]) -> Result<Self> {
        println!("$ kubectl {} &", words.join(" "));
        let file = world.cluster.folder().join(format!("watched-{}", words[1]));
        let child = Command::new(world.cluster.kubectl())
            .args(words)
            .env("KUBECONFIG", world.cluster.kubeconfig_path())
            .stdin(Stdio::null())
            .stdout(File::create(&file)?)
            .spawn()?;
        let watching = Self { child, file, world };
        watching.sees("the beginning", |said| !said.is_empty())?;
        Ok(watching)
    }

    /// All lines, once `enough` accepts them.
    pub fn sees(&self, what: &str, enough: impl Fn(&str) -> bool) -> Result<String> {
        self.world.until(what, || {
            let said = std::fs::read_to_string(&self.file)?;
            Ok(enough(&said).then_some(said))
        })
    }
}

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
