//! Reads the keys of kube-node-ready's DaemonSet mode. Its README shows them below `config`, where the chart of Nodekeeper
//! has the controller's file.

use nodekeeper_core::api::GateTaint;

use super::section::{Field, Section};
use super::{LegacyConfig, gate, validators, worker};

/// The keys, each with the section of the controller's file that has the same setting.
const KEYS: [(&str, &str); 16] = [
    ("taintKey", "nodeManagement"),
    ("taintValue", "nodeManagement"),
    ("taintEffect", "nodeManagement"),
    ("verifiedLabel", "nodeManagement"),
    ("verifiedLabelValue", "nodeManagement"),
    ("deleteFailedNode", "nodeManagement"),
    ("dnsTestDomains", "worker"),
    ("checkTimeout", "worker"),
    ("initialTimeout", "worker"),
    ("clusterDNSIP", "worker"),
    ("maxRetries", "reconciliation"),
    ("retryBackoff", "reconciliation"),
    ("enableMetrics", "metrics"),
    ("metricsPort", "metrics"),
    ("logLevel", "logging"),
    ("logFormat", "logging"),
];

/// The keys of the DaemonSet mode that a file has.
pub struct DaemonSet<'a>(Vec<(&'static str, Field<'a>)>);

impl<'a> DaemonSet<'a> {
    /// Takes the keys, and reports those whose section is there as well: one of the two would have no effect.
    pub fn take(root: &mut Section<'a>) -> Self {
        let mut taken = Vec::new();
        for (key, section) in KEYS {
            let Some(field) = root.take_unlisted(key) else { continue };
            if root.peek(section).is_some() {
                field.wrong(format!(
                    "is a key of kube-node-ready's DaemonSet mode, which cannot be combined with `{section}`: write it there"
                ));
            } else {
                taken.push((key, field));
            }
        }
        Self(taken)
    }

    fn get(&self, key: &str) -> Option<Field<'a>> {
        self.0.iter().find(|(known, _)| *known == key).map(|(_, field)| field.clone())
    }

    /// Reads the taken keys, after all sections.
    pub fn read(self, root: &mut Section, legacy: &mut LegacyConfig) {
        if self.0.is_empty() {
            return;
        }
        root.list(KEYS.map(|(key, _)| key));
        self.read_gate(legacy);
        self.read_checks(legacy);
        self.read_process(legacy);
    }

    fn read_gate(&self, legacy: &mut LegacyConfig) {
        let mut taint = GateTaint::default();
        if let Some(key) = self.get("taintKey").and_then(|field| gate::taint_key(&field)) {
            taint.key = key;
        }
        if let Some(value) =
            self.get("taintValue").and_then(|field| field.checked(validators::is_value, validators::VALUE))
        {
            taint.value = value;
        }
        if let Some(effect) = self.get("taintEffect").and_then(|field| gate::effect(&field)) {
            taint.effect = effect;
        }
        if ["taintKey", "taintValue", "taintEffect"].iter().any(|key| self.get(key).is_some()) {
            legacy.gate.taints = vec![taint];
        }
        let label = &mut legacy.gate.verified_label;
        if let Some(key) = self.get("verifiedLabel").and_then(|field| gate::verified_key(&field)) {
            label.key = key;
        }
        if let Some(value) = self
            .get("verifiedLabelValue")
            .and_then(|field| field.checked(validators::is_value, validators::VALUE))
        {
            label.value = value;
        }
        if let Some(field) = self.get("deleteFailedNode") {
            gate::delete_failed_nodes(&field, legacy);
        }
        if let Some(retries) = self.get("maxRetries").and_then(|field| field.int(0..=100)) {
            legacy.gate.retry.max_retries = retries;
        }
        if let Some(backoff) = self.get("retryBackoff").and_then(|field| gate::backoff(&field)) {
            legacy.gate.retry.backoff = backoff;
        }
    }

    fn read_checks(&self, legacy: &mut LegacyConfig) {
        if let Some(field) = self.get("dnsTestDomains") {
            worker::domains(&field, legacy);
        }
        if let Some(field) = self.get("clusterDNSIP").and_then(validators::optional)
            && field.text().is_some()
        {
            field.idle("as in kube-node-ready; `checks.dns.servers` of a NodeGate names DNS servers");
        }
        let deadlines = &mut legacy.gate.deadlines;
        let timeout = self.get("checkTimeout");
        if let Some(seconds) = timeout.as_ref().and_then(|field| field.duration(1..=600)) {
            deadlines.check_seconds = seconds;
        }
        // The pod of the DaemonSet makes all its attempts within this time, and one worker has at most all of it.
        let total = self.get("initialTimeout");
        if let Some(seconds) = total.as_ref().and_then(|field| field.duration(30..=86_400)) {
            deadlines.gate_seconds = seconds;
            deadlines.worker_seconds = deadlines.worker_seconds.min(seconds);
        }
        let (check, worker) = (deadlines.check_seconds, deadlines.worker_seconds);
        if let Some(field) = timeout.or(total)
            && worker <= check + worker::SPARE
        {
            field.wrong(format!(
                "a check may take {check} s, and a worker has {worker} s for all: make `checkTimeout` less than {} s",
                worker - worker::SPARE
            ));
        }
    }

    fn read_process(&self, legacy: &mut LegacyConfig) {
        super::metrics(self.get("enableMetrics"), self.get("metricsPort"), legacy);
        super::log_level(self.get("logLevel").and_then(validators::optional), legacy);
        super::log_format(self.get("logFormat").and_then(validators::optional), legacy);
    }
}
