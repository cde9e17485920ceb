//! Nodes of two gates: each gate keeps its own section of the record.

use std::collections::BTreeMap;
use std::sync::Arc;

use nodekeeper_core::id::Id;
use nodekeeper_core::record::Record;
use nodekeeper_core::report::Verdict;
use nodekeeper_core::text::SharedText;
use nodekeeper_sim::harness::Invariant;
use nodekeeper_sim::object::{name, text, uid};
use nodekeeper_sim::store::Change;
use nodekeeper_sim::value::Value;

use super::invariants::{is_ours, record};

/// The section before a write of the gate that wrote: its own, or the one of the gate that it succeeds.
pub fn section_before(before: &Value, is: &Record) -> Option<Record> {
    let all = record(before)?;
    let own = all.section(&is.scope.gate_uid);
    let is_left = |section: &&Record| is.section(&section.scope.gate_uid).is_none();
    own.or_else(|| all.sections().find(is_left)).cloned()
}

/// Whether two sections differ at most in what other gates and requests change.
pub fn is_same_section(one: &Record, other: &Record) -> bool {
    let [one, other] = [one, other].map(|section| Record {
        uid: Id::default(),
        number: 0,
        unlabelled: false,
        requested: false,
        taint: SharedText::default(),
        others: Vec::new(),
        ..section.clone()
    });
    one == other
}

/// In the end every gate that opened the node has verified its present boot.
pub fn all_gates_verified(node: &Value, gates: &[Arc<Value>]) -> Result<(), String> {
    let boot = text(node, "status.nodeInfo.bootID");
    let Some(record) = record(node) else { return Ok(()) };
    for gate in gates {
        let Some(section) = record.section(uid(gate)).filter(|section| section.is_open()) else { continue };
        let is_verified = section.scope.boot_id == *boot && section.verdict == Some(Verdict::Passed);
        if !is_verified && !section.audited {
            return Err(format!("gate {} has not verified {} again: {record:?}", name(gate), name(node)));
        }
    }
    Ok(())
}

/// A gate changes only its own section.
#[derive(Default)]
pub struct SectionsAreKept {
    /// By name: the uid of the gate.
    gates: BTreeMap<String, String>,
}

impl Invariant for SectionsAreKept {
    fn name(&self) -> &'static str {
        "a gate changes only its own section of a record"
    }

    fn check(&mut self, change: &Change) -> Result<(), String> {
        match (change.collection.as_str(), &change.after) {
            ("nodekeeper.dev/nodegates", Some(gate)) => {
                self.gates.insert(change.key.clone(), uid(gate).to_owned());
            }
            ("nodekeeper.dev/nodegates", None) => drop(self.gates.remove(&change.key)),
            _ => {}
        }
        let (Some(before), Some(after)) = (&change.before, &change.after) else { return Ok(()) };
        if change.collection != "nodes" || !is_ours(change) {
            return Ok(());
        }
        let (Some(was), Some(is)) = (record(before), record(after)) else { return Ok(()) };
        for section in was.sections().filter(|section| section.scope.gate_uid != is.scope.gate_uid) {
            let exists = self.gates.values().any(|uid| section.scope.gate_uid == *uid);
            match is.section(&section.scope.gate_uid) {
                Some(kept) if is_same_section(section, kept) => {}
                // A gate takes over the section of the gate that it succeeds.
                None if !exists => {}
                kept => return Err(format!("{section:?} became {kept:?}")),
            }
        }
        Ok(())
    }
}
