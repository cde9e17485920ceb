//! Reads assignments, which a controller of another release may have written.

use nodekeeper_core::checks::{Assignment, WorkerIdentity};
use nodekeeper_core::report::Report;
use serde_json::Value;

use crate::run::misconfigured;

/// Reads an assignment. If it is invalid, the report of the error is returned, with the identity if that is readable.
pub fn read(text: &str) -> Result<Assignment, Box<Report>> {
    serde_json::from_str(text).map_err(|error| {
        let identity = serde_json::from_str(text).ok().and_then(|mut document: Value| {
            serde_json::from_value::<WorkerIdentity>(document.get_mut("subject")?.take()).ok()
        });
        let error = format!("the assignment cannot be read: {error}");
        Box::new(misconfigured(identity.unwrap_or_default(), &error))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_of_an_unknown_check_has_its_identity() {
        let mut assignment = Assignment::default();
        assignment.identity.node_uid = "a-uid".into();
        let mut document = serde_json::to_value(&assignment).expect("it is JSON");
        assert_eq!(read(&document.to_string()).expect("it can be read"), assignment);
        document["checks"]["ping"] = serde_json::json!({});
        let report = read(&document.to_string()).expect_err("the check is unknown");
        assert_eq!((report.identity.node_uid.as_str(), report.exit_code()), ("a-uid", 2));
        assert!(report.summary().contains("ping"), "{}", report.summary());
        assert_eq!(read("what?").expect_err("no JSON").exit_code(), 2);
    }

    #[test]
    fn an_unknown_field_is_an_error() {
        let mut document = serde_json::to_value(Assignment::default()).expect("it is JSON");
        document["chekcs"] = 1.into();
        let report = read(&document.to_string()).expect_err("the field is unknown");
        assert!(report.summary().contains("chekcs"), "{}", report.summary());
    }
}
