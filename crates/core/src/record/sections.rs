//! The sections of a record: one for each gate of the node.

use std::borrow::Cow;

use super::{Record, WHY_LIMIT};
use crate::id::Id;
use crate::text::SharedText;

/// How many gates of a node have a section.
pub(super) const MAX_SECTIONS: usize = 8;
/// More failed checks than any release records.
const MAX_FAILED: usize = 16;

impl Record {
    /// All sections, the record itself first.
    pub fn sections(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(&self.others)
    }

    /// The section of the gate with this uid.
    #[must_use]
    pub fn section<U: ?Sized>(&self, gate_uid: &U) -> Option<&Self>
    where
        Id: PartialEq<U>,
    {
        self.sections().find(|section| section.scope.gate_uid == *gate_uid)
    }

    /// The texts that many nodes have in common.
    pub(crate) fn texts_mut(&mut self) -> impl Iterator<Item = &mut SharedText> {
        let Self { why, label, taint, others, .. } = self;
        let nested = others.iter_mut().flat_map(|one| [&mut one.why, &mut one.label, &mut one.taint]);
        [why, label, taint].into_iter().chain(nested)
    }

    /// The record with the section at this index of [`Record::sections`] first.
    pub(crate) fn with_first(&self, index: usize) -> Cow<'_, Self> {
        let Some(section) = index.checked_sub(1).and_then(|index| self.others.get(index)) else {
            return Cow::Borrowed(self);
        };
        let rest = self.sections().enumerate().filter(|(i, _)| *i != index).map(|(_, other)| other.nested());
        Cow::Owned(Self {
            uid: self.uid.clone(),
            number: self.number,
            others: rest.collect(),
            ..section.clone()
        })
    }

    /// The record with a new section first. `taint_of` names the first taint of a gate that exists, by the gate's uid. If
    /// there are too many sections, those of gates that do not exist are dropped first, then those that were written first.
    pub(crate) fn with_new<'a>(&self, taint_of: impl Fn(&Id) -> Option<&'a str>) -> Self {
        let mut others: Vec<Self> = self.sections().filter(|one| !one.is_blank()).map(Self::nested).collect();
        for section in &mut others {
            // Until now there was one gate, and its section did not keep the taint that the gate removed.
            if let Some(taint) = taint_of(&section.scope.gate_uid).filter(|_| section.taint.is_empty()) {
                section.taint = taint.into();
            }
        }
        while others.len() >= MAX_SECTIONS {
            let is_orphan = |section: &Self| taint_of(&section.scope.gate_uid).is_none();
            let dropped = others.iter().rposition(is_orphan).unwrap_or(others.len() - 1);
            others.remove(dropped);
        }
        Self { uid: self.uid.clone(), number: self.number, others, ..Self::default() }
    }

    /// Notes in the other sections with this label that the label was set, or that it is missing.
    #[must_use]
    pub(crate) fn with_label_set(mut self, label: &str, is_set: bool) -> Self {
        for section in self.others.iter_mut().filter(|section| *section.label == *label) {
            section.unlabelled = !is_set;
        }
        self
    }

    /// Requests a verification by the other gates too.
    #[must_use]
    pub(crate) fn with_others_requested(mut self) -> Self {
        for section in &mut self.others {
            section.requested = true;
        }
        self
    }

    /// Whether the section says nothing.
    fn is_blank(&self) -> bool {
        Self { uid: Id::default(), number: 0, others: Vec::new(), ..self.clone() } == Self::default()
    }

    /// The section as it stands in [`Record::others`].
    fn nested(&self) -> Self {
        Self { uid: Id::default(), others: Vec::new(), ..self.clone() }
    }

    /// The record as the controller writes it. A kubelet may annotate its own node with anything.
    pub(super) fn normalised(mut self) -> Self {
        self.others.retain(|section| section.why.len() <= WHY_LIMIT && section.failed.len() <= MAX_FAILED);
        self.others.truncate(MAX_SECTIONS - 1);
        for section in &mut self.others {
            (section.uid, section.others) = (Id::default(), Vec::new());
        }
        self.number = self.sections().map(|section| section.number).max().unwrap_or_default();
        self
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::api::FailedCheck;
    use crate::record::VerificationScope;
    use crate::report::Verdict;

    fn section(gate: &str, number: u32) -> Record {
        Record {
            uid: "u".into(),
            number,
            scope: VerificationScope { boot_id: "b".into(), gate_uid: gate.into(), gate_generation: 1 },
            verdict: Some(Verdict::Passed),
            open: true,
            ..Record::default()
        }
    }

    /// The record of gates that each wrote once, one after the other.
    fn record_of(gates: &[String]) -> Record {
        let mut record = Record::default();
        for (number, gate) in (1..).zip(gates) {
            record = Record { others: record.with_new(|_| Some("t")).others, ..section(gate, number) };
        }
        record
    }

    fn gates_of(record: &Record) -> Vec<String> {
        record.sections().map(|section| section.scope.gate_uid.to_string()).collect()
    }

    #[test]
    fn g08_the_form_of_one_gate_is_the_first_section() {
        let text = r#"{"uid":"u","number":8,"round":{"bootId":"b","gateUid":"g","gateGeneration":2},"workers":6,"attempts":3,"verdict":"Passed","why":"5 checks passed in 120 ms","at":"2026-11-15T12:00:00Z","open":true,"label":"node-ready/verified"}"#;
        let one = Record::read(Some(text), "u").expect("it is a record");
        assert_eq!((one.sections().count(), one.section("g")), (1, Some(&one)));
        let two = one.with_new(|_| Some("strict/unverified"));
        assert_eq!((two.uid.clone(), two.number, two.verdict), ("u".into(), 8, None));
        let read = Record::read(Some(&two.to_annotation()), "u").expect("it is a record");
        assert_eq!(read, two);
        let first = read.section("g").expect("its section");
        assert_eq!((&*first.taint, &*first.label), ("strict/unverified", "node-ready/verified"));
        assert!(!two.to_annotation()[1..].contains("\"uid\":\"\""), "{}", two.to_annotation());
    }

    #[test]
    fn g08_a_record_that_somebody_else_wrote_is_made_plausible() {
        let nested = r#"{"uid":"x","number":9,"others":[{"number":3}]}"#;
        let text = format!(r#"{{"uid":"u","number":2,"others":[{nested},{}]}}"#, ["{}"; 20].join(","));
        let read = Record::read(Some(&text), "u").expect("it is a record");
        assert_eq!((read.number, read.others.len()), (9, MAX_SECTIONS - 1), "no number is used twice");
        assert!(read.others.iter().all(|section| section.uid.is_empty() && section.others.is_empty()));
        let too_high = text.replace("\"number\":9", "\"number\":4294967295");
        assert_eq!(Record::read(Some(&too_high), "u"), None);
        let long = format!(r#"{{"uid":"u","others":[{{"why":"{}"}}]}}"#, "x".repeat(5000));
        assert_eq!(Record::read(Some(&long), "u").expect("it is a record").others, []);
    }

    #[test]
    fn g08_sections_are_bounded_and_orphans_go_first() {
        let mut record = Record::default();
        for number in 1..40 {
            let gate = format!("g{number}");
            let exists = |uid: &Id| (*uid == *"g1" || *uid == *"g30").then_some("t");
            let new = record.with_new(exists);
            let failed =
                FailedCheck { name: "n".repeat(64), target: "t".repeat(128), reason: "r".repeat(64) };
            record = Record {
                others: new.others,
                why: "\"".repeat(WHY_LIMIT).as_str().into(),
                failed: vec![failed; 8],
                ..section(&gate, number)
            };
        }
        assert_eq!(record.sections().count(), MAX_SECTIONS);
        let gates = gates_of(&record);
        assert!(gates.contains(&"g1".to_owned()) && gates.contains(&"g30".to_owned()), "{gates:?}");
        assert!(record.to_annotation().len() < 64 * 1024, "{}", record.to_annotation().len());
        let all_exist = record.with_new(|_| Some("t"));
        assert!(!gates_of(&all_exist).contains(&"g1".to_owned()), "the oldest goes");
    }

    proptest! {
        /// Whichever section comes first, nothing is lost and nothing is made up.
        #[test]
        fn g08_rotating_loses_nothing(count in 1_usize..6, turns in prop::collection::vec(0_usize..6, 0..8)) {
            let gates: Vec<String> = (0..count).map(|number| format!("g{number}")).collect();
            let record = record_of(&gates);
            let mut turned = record.clone();
            for turn in turns {
                let index = turn % count;
                let expected = turned.sections().nth(index).map(|section| section.scope.gate_uid.clone());
                turned = turned.with_first(index).into_owned();
                prop_assert_eq!(Some(&turned.scope.gate_uid), expected.as_ref());
                prop_assert_eq!((&turned.uid, turned.number), (&record.uid, record.number));
                let read = Record::read(Some(&turned.to_annotation()), "u");
                prop_assert_eq!(read.as_ref(), Some(&turned));
                let mut found = gates_of(&turned);
                found.sort();
                prop_assert_eq!(&found, &gates);
                for gate in &gates {
                    let sections = [&record, &turned].map(|record| record.section(gate.as_str()));
                    let [was, is] = sections.map(|one| one.map(|one| Record { number: 0, ..one.nested() }));
                    prop_assert_eq!(was, is);
                }
            }
        }
    }
}
