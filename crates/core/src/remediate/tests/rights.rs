//! The permissions that acts need.

use super::*;
use crate::api::CauseSelector;

fn names(spec: &RemediationPolicySpec) -> Vec<String> {
    needed_rights(spec).iter().map(Right::to_string).collect()
}

#[test]
fn r20_an_enforcing_policy_needs_what_its_acts_do() {
    let mut spec = policy().spec;
    assert_eq!(names(&spec), ["patch nodes", "create pods/eviction", "delete nodeclaims.karpenter.sh"]);
    spec.delete_node_object_for = vec![CauseSelector { source: CauseSource::Gate, name: "*".into() }];
    assert_eq!(names(&spec).last().map(String::as_str), Some("delete nodes"));
    spec.enforcement = ActEnforcement::DryRun;
    assert_eq!(names(&spec), [""; 0], "a dry run does nothing");
}

#[test]
fn r20_the_policy_names_missing_permissions() {
    let policy = policy();
    let missing = needed_rights(&policy.spec);
    let ready = |missing_rights: &[Right]| {
        let status = reconcile_policy_status(&PolicyInput {
            policy: &policy,
            requests: &[],
            group_stats: &GroupStats::default(),
            progress: &|_| NodeProgress::Gone,
            compared: &[],
            found: PolicyFindings { missing_rights, ..PolicyFindings::default() },
            now: at(1),
        });
        status.conditions.into_iter().find(|one| one.type_ == "Ready").expect("it is there")
    };
    assert_eq!(ready(&[]).reason, "Enforcing");
    let refused = ready(&missing[1..]);
    assert_eq!((&*refused.status, &*refused.reason), ("False", "MissingRights"));
    for word in
        ["create pods/eviction, delete nodeclaims.karpenter.sh:", "`remediation.enforcement: Enforce`"]
    {
        assert!(refused.message.contains(word), "{}", refused.message);
    }
    assert!(!refused.message.contains("patch nodes"), "{}", refused.message);
}
