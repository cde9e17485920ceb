//! The audit log of the API server, which says who sent which request. So it shows what uses each right of the chart.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::NAMESPACE;

/// A right of one account, or what an allowed request of it needed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    account: String,
    /// A namespace, or `*` for all and for requests without one.
    place: String,
    /// The group and the resource, as in `apps/deployments`.
    resource: String,
    /// Empty if the right is for all names.
    name: String,
    verb: String,
}

impl fmt::Display for Right {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { account, place, resource, name, verb } = self;
        write!(out, "{account} {place}: {resource} [{name}] {verb}")
    }
}

impl Right {
    /// Each right of a rule that is written as [`crate::chart::granted`] does.
    fn of_rule(rule: &str) -> Result<Vec<Self>> {
        let words: Vec<&str> = rule.split(' ').collect();
        let [account, place, resources, names, verbs] = words[..] else { anyhow::bail!("{rule}") };
        let (group, resources) = resources.split_once('/').context("no group")?;
        let mut rights = Vec::new();
        for resource in resources.split(',') {
            for name in names.trim_matches(['[', ']']).split(',') {
                rights.extend(verbs.split(',').map(|verb| Self {
                    account: account.into(),
                    place: place.trim_end_matches(':').into(),
                    resource: format!("{group}/{resource}"),
                    name: name.into(),
                    verb: verb.into(),
                }));
            }
        }
        Ok(rights)
    }

    /// What an event of the audit log needed; None if it was refused, or is about no resource.
    fn of_event(event: &Value) -> Option<Self> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        if event["annotations"]["authorization.k8s.io/decision"] != "allow" {
            return None;
        }
        let (user, object) = (event["user"]["username"].as_str()?, &event["objectRef"]);
        let mut resource = format!("{}/{}", text(&object["apiGroup"]), object["resource"].as_str()?);
        if let Some(part) = object["subresource"].as_str() {
            resource = format!("{resource}/{part}");
        }
        Some(Self {
            account: user.rsplit(':').next()?.to_owned(),
            place: object["namespace"].as_str().unwrap_or("*").to_owned(),
            resource,
            name: text(&object["name"]),
            verb: text(&event["verb"]),
        })
    }

    /// Whether this right allows what a request needed.
    fn allows(&self, needed: &Self) -> bool {
        (self.place == "*" || self.place == needed.place)
            && (self.name.is_empty() || self.name == needed.name)
            && (&self.account, &self.resource, &self.verb)
                == (&needed.account, &needed.resource, &needed.verb)
    }
}

/// Deletes the log when dropped.
pub struct AuditLog(TempDir);

impl AuditLog {
    pub fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let accounts = json!([{"level": "Metadata", "userGroups": [format!("system:serviceaccounts:{NAMESPACE}")]},
            {"level": "None"}]);
        let policy = json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
            "rules": accounts});
        fs::write(folder.path().join("policy.yaml"), policy.to_string())?;
        Ok(Self(folder))
    }

    /// The flags of an API server that writes this log.
    pub fn flags(&self) -> Vec<String> {
        let path = |name: &str| self.0.path().join(name).display().to_string();
        vec![
            format!("--audit-policy-file={}", path("policy.yaml")),
            format!("--audit-log-path={}", path("log")),
        ]
    }

    /// What the allowed requests of all accounts needed.
    pub fn needed(&self) -> Result<BTreeSet<Right>> {
        let text = fs::read_to_string(self.0.path().join("log"))?;
        // The last line may not be complete yet.
        let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let events: serde_json::Result<Vec<Value>> = whole.map(serde_json::from_str).collect();
        Ok(events?.iter().filter_map(Right::of_event).collect())
    }

    /// The rights of these rules that no request used. A right in one namespace comes before the same in all: a request is
    /// no use of the latter where the former suffices.
    pub fn unused(&self, rules: &BTreeSet<String>) -> Result<Vec<String>> {
        let rights: Result<Vec<Vec<Right>>> = rules.iter().map(|rule| Right::of_rule(rule)).collect();
        let rights = rights?.concat();
        let mut used = BTreeSet::new();
        for needed in self.needed()? {
            let allowing = || rights.iter().filter(|right| right.allows(&needed));
            let is_narrow = allowing().any(|right| right.place != "*");
            used.extend(allowing().filter(|right| !is_narrow || right.place != "*"));
        }
        Ok(rights.iter().filter(|right| !used.contains(right)).map(Right::to_string).collect())
    }
}

#[test]
fn u07_a_request_uses_the_narrowest_right() -> Result<()> {
    let log = AuditLog::new()?;
    let rules =
        ["worker *: /pods [] list,get", "worker here: /pods [] list", "worker here: /pods [one,two] get"];
    let rules = rules.map(str::to_owned).into();
    let event = |verb: &str, namespace: Option<&str>, name: &str, decision: &str| {
        let object = json!({"resource": "pods", "namespace": namespace, "name": name});
        let event = json!({"verb": verb, "user": {"username": "system:serviceaccount:here:worker"}, "objectRef": object,
            "annotations": {"authorization.k8s.io/decision": decision}});
        format!("{event}\n")
    };
    let left = |events: &[String]| {
        fs::write(log.0.path().join("log"), format!("{}{{\"half", events.concat()))?;
        log.unused(&rules)
    };
    let all = ["worker *: /pods [] list", "worker *: /pods [] get", "worker here: /pods [] list"];
    let named = ["worker here: /pods [one] get", "worker here: /pods [two] get"];
    assert_eq!(left(&[event("list", Some("here"), "", "forbid")])?, [&all[..], &named].concat());
    let narrow = [event("list", Some("here"), "", "allow"), event("get", Some("here"), "one", "allow")];
    assert_eq!(left(&narrow)?, [&all[..2], &named[1..]].concat());
    let wide = [event("list", None, "", "allow"), event("get", Some("there"), "one", "allow")];
    assert_eq!(left(&wide)?, [&all[2..], &named].concat());
    Ok(())
}
