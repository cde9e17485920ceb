//! Parses an assignment, which a controller of another release may have written.

use nodekeeper_core::checks::{Assignment, WorkerIdentity};
use nodekeeper_core::report::Report;
use serde_json::Value;

use crate::run::misconfigured;

/// Parses an assignment. If it is invalid, returns the report to write instead, with the identity if that can be read.
pub fn read(text: &str) -> Result<Assignment, Box<Report>> {
    serde_json::from_str(text).map_err(|error| {
        let identity = serde_json::from_str(text).ok().and_then(|mut document: Value| {
            serde_json::from_value::<WorkerIdentity>(document.get_mut("subject")?.take()).ok()
        });
        let told = format!("the assignment cannot be read: {error}");
        Box::new(misconfigured(identity.unwrap_or_default(), &told))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_assignment_of_another_release_is_answered_to_its_sender() {
        let mut assignment = Assignment::default();
        assignment.identity.node_uid = "a-uid".into();
        let mut document = serde_json::to_value(&assignment).expect("it is JSON");
        assert_eq!(read(&document.to_string()).expect("it can be read"), assignment);
        document["checks"]["ping"] = serde_json::json!({});
        let report = read(&document.to_string()).expect_err("nobody knows that check");
        assert_eq!((report.identity.node_uid.as_str(), report.exit_code()), ("a-uid", 2));
        assert!(report.summary().contains("ping"), "{}", report.summary());
        assert_eq!(read("what?").expect_err("no JSON").exit_code(), 2);
    }

    #[test]
    fn a_field_that_nobody_knows_is_not_ignored() {
        let mut document = serde_json::to_value(Assignment::default()).expect("it is JSON");
        document["chekcs"] = 1.into();
        let report = read(&document.to_string()).expect_err("nobody knows that field");
        assert!(report.summary().contains("chekcs"), "{}", report.summary());
    }
}
