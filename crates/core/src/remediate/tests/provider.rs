//! Providers.

use super::*;
use crate::api::CauseSelector;
use crate::remediate::provider::{NodeClaims, find};
use k8s_openapi::api::core::v1::Node;

fn bare() -> Target {
    Target { is_karpenter_node: false, owner: None, ..target("n1") }
}

fn found(target: &Target, claims: Vec<NodeClaimView>) -> Replacement {
    find(target, &NodeClaims::Known(claims), true)
}

fn by_id(name: &str) -> NodeClaimView {
    NodeClaimView { provider_id: "cloud://n1".into(), ..claim(name) }
}

fn by_name(name: &str) -> NodeClaimView {
    NodeClaimView { node_name: "node-n1".into(), ..claim(name) }
}

#[test]
fn a_node_claim_is_found_by_owner_machine_or_name() {
    let owned = Target { owner: Some(("own".into(), "uid-own".into())), ..target("n1") };
    let all = || vec![by_name("name"), by_id("id"), claim("own")];
    assert_eq!(found(&owned, all()), Replacement::Karpenter(claim("own")));
    assert_eq!(found(&target("n1"), all()), Replacement::Karpenter(by_id("id")));
    assert_eq!(
        found(&target("n1"), vec![by_name("name"), claim("other")]),
        Replacement::Karpenter(by_name("name"))
    );
    assert_eq!(
        found(&bare(), vec![by_id("id")]),
        Replacement::Karpenter(by_id("id")),
        "without any sign of Karpenter"
    );
}

#[test]
fn i08_a_node_name_alone_does_not_identify_a_machine() {
    let other = NodeClaimView { provider_id: "cloud://new".into(), ..by_name("new") };
    assert_eq!(
        found(&target("n1"), vec![other]),
        Replacement::NodeClaimMissing,
        "that replacement only has the name"
    );
    let owned = Target { owner: Some(("gone".into(), "uid-gone".into())), ..target("n1") };
    assert_eq!(found(&owned, vec![by_name("new")]), Replacement::NodeClaimMissing, "its owner was another");
    assert_eq!(found(&owned, vec![by_id("same")]), Replacement::Karpenter(by_id("same")));
    let mut nameless = target("n1");
    nameless.identity.provider_id = String::new();
    let unset = NodeClaimView { node_name: "x".into(), ..claim("unset") };
    assert_eq!(
        found(&nameless, vec![unset]),
        Replacement::NodeClaimMissing,
        "two that say nothing are not the same"
    );
}

#[test]
fn two_matching_node_claims_are_an_error() {
    for pair in [[by_name("one"), by_name("two")], [by_id("one"), by_id("two")]] {
        let Replacement::Unknown(why) = found(&target("n1"), pair.to_vec()) else { panic!("{pair:?}") };
        assert!(why.contains("one") && why.contains("two") && why.contains("delete the wrong one"), "{why}");
    }
}

#[test]
fn f14_an_unreadable_provider_deletes_no_node_object() {
    // kube-node-ready read NodeClaims in a version that is no longer served, and deleted the Node instead.
    let karpenters = target("n1");
    for claims in [NodeClaims::NotServed, NodeClaims::Unreadable("403 Forbidden".into())] {
        let replacement = find(&karpenters, &claims, true);
        assert!(matches!(replacement, Replacement::Unknown(_)), "{replacement:?}");
        let world = World::with(|world| world.replacement = replacement.clone());
        assert_eq!(world.block_reason(), Some(BlockReason::ProviderUnreadable));
    }
    assert!(matches!(
        find(&bare(), &NodeClaims::Unreadable("timeout".into()), true),
        Replacement::Unknown(_)
    ));
    let missing = found(&karpenters, vec![]);
    assert_eq!(missing, Replacement::NodeClaimMissing);
    assert_eq!(
        World::with(|world| world.replacement = missing).block_reason(),
        Some(BlockReason::ProviderUnreadable)
    );
}

#[test]
fn a_node_object_is_deleted_only_if_the_policy_allows_it() {
    for claims in [NodeClaims::NotServed, NodeClaims::Known(vec![claim("other")])] {
        assert_eq!(find(&bare(), &claims, true), Replacement::NodeObject);
        assert_eq!(find(&bare(), &claims, false), Replacement::None);
    }
    assert_eq!(World::with(|world| world.replacement = Replacement::NodeObject).block_reason(), None);
}

#[test]
fn r12_node_objects_are_deleted_by_source_and_name_of_all_causes() {
    let mut policy = policy();
    let by_gate = request("n1", vec![cause(CauseSource::Gate, at(0))]);
    let by_both = request("n1", vec![cause(CauseSource::Gate, at(0)), cause(CauseSource::Recycler, at(0))]);
    let namesake = RemediationCause { name: "default".into(), ..cause(CauseSource::Person, at(0)) };
    let by_namesake = request("n1", vec![namesake]);
    let mut deletes = |selectors: &[(CauseSource, &str)]| {
        let selector =
            |(source, name): &(CauseSource, &str)| CauseSelector { source: *source, name: (*name).into() };
        policy.spec.delete_node_object_for = selectors.iter().map(selector).collect();
        [&by_gate, &by_both, &by_namesake].map(|request| policy.deletes_node_object_for(request))
    };
    let (gate, recycler, person) = (CauseSource::Gate, CauseSource::Recycler, CauseSource::Person);
    assert_eq!(deletes(&[]), [false, false, false]);
    assert_eq!(deletes(&[(gate, "other")]), [false, false, false]);
    assert_eq!(deletes(&[(gate, "default")]), [true, false, false], "a person named like the gate");
    assert_eq!(deletes(&[(person, "default")]), [false, false, true]);
    assert_eq!(deletes(&[(gate, "default"), (recycler, "oom")]), [true, true, false]);
    assert_eq!(deletes(&[(gate, "*")]), [true, false, false], "any name, but of this source");
    assert_eq!(deletes(&[(gate, "*"), (recycler, "*"), (person, "*")]), [true, true, true]);
    assert!(!policy.deletes_node_object_for(&request("n1", vec![])), "no cause");
}

#[test]
fn unregistered_and_deleted_claims_are_left_alone() {
    let unregistered = World::with(|world| world.target().registered = false);
    assert_eq!(unregistered.block_reason(), Some(BlockReason::NotRegistered));
    let unknown = World::with(|world| {
        world.target().registered = false;
        world.replacement = Replacement::NodeClaimMissing;
    });
    assert_eq!(unknown.block_reason(), Some(BlockReason::NotRegistered), "its claim is not known yet");
    let deleting = NodeClaimView { deleting: true, ..claim("c1") };
    assert_eq!(
        World::with(|world| world.replacement = Replacement::Karpenter(deleting)).block_reason(),
        Some(BlockReason::NodeTerminating)
    );
}

#[test]
fn a_replacement_names_its_provider_and_machine() {
    let said = |replacement: Replacement| (replacement.provider(), replacement.machine().to_owned());
    assert_eq!(said(Replacement::Karpenter(claim("c"))), ("Karpenter", "c".into()));
    assert_eq!(said(Replacement::NodeClaimMissing), ("Karpenter", String::new()));
    assert_eq!(said(Replacement::NodeObject), ("NodeObject", String::new()));
    assert_eq!(said(Replacement::None), ("", String::new()));
    assert_eq!(said(Replacement::Unknown("403".into())), ("", String::new()));
}

fn node(json: serde_json::Value) -> Target {
    Target::new(&serde_json::from_value::<Node>(json).expect("a Node"))
}

#[test]
fn a_target_reads_owner_template_and_attributes() {
    let of = node(serde_json::json!({
        "metadata": {
            "name": "n", "uid": "u", "creationTimestamp": "2026-11-16T12:00:00Z",
            "labels": {
                "karpenter.sh/nodepool": "pool", "karpenter.sh/registered": "true",
                "topology.kubernetes.io/zone": "a", "node.kubernetes.io/instance-type": "m5",
            },
            "annotations": {
                "karpenter.sh/nodepool-hash": "h", "nodekeeper.dev/cordoned-for": "u",
                "karpenter.sh/do-not-disrupt": "true",
            },
            "ownerReferences": [{"apiVersion": "karpenter.sh/v1beta1", "kind": "NodeClaim", "name": "c", "uid": "cu"}],
        },
        "spec": {"providerID": "cloud://n", "unschedulable": true},
        "status": {"nodeInfo": {
            "bootID": "b", "osImage": "Linux 1", "architecture": "", "containerRuntimeVersion": "", "kernelVersion": "",
            "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "", "operatingSystem": "", "systemUUID": "",
        }},
    }));
    assert_eq!((&*of.group, &*of.zone, &*of.template, of.created), ("pool", "a", "h", at(0)));
    assert_eq!((&*of.identity.provider_id, &*of.identity.boot_id), ("cloud://n", "b"));
    assert_eq!(of.owner, Some(("c".into(), "cu".into())), "whatever version its owner has");
    assert!(
        of.is_karpenter_node && of.registered && of.unschedulable && !of.control_plane && !of.terminating
    );
    assert_eq!((of.cordoned_for.as_deref(), of.opted_out), (Some("u"), Some("karpenter.sh/do-not-disrupt")));
    let attributes: Vec<(&str, &str)> = of.attributes.iter().map(|(key, value)| (&**key, &**value)).collect();
    assert_eq!(attributes, [("image", "Linux 1"), ("type", "m5"), ("zone", "a")]);
}

#[test]
fn r17_etcd_and_legacy_control_plane_roles_are_protected() {
    for role in ["etcd", "controlplane"] {
        let key = format!("node-role.kubernetes.io/{role}");
        assert!(node(serde_json::json!({"metadata": {"labels": {&key: "true"}}})).control_plane, "{role}");
        let taints = serde_json::json!({"spec": {"taints": [{"key": key, "effect": "NoExecute"}]}});
        assert!(node(taints).control_plane, "{role}");
    }
    let worker = node(serde_json::json!({"metadata": {"labels": {"node-role.kubernetes.io/worker": ""}}}));
    assert!(!worker.control_plane);
}

#[test]
fn a_target_recognises_karpenter_and_control_plane() {
    for json in [
        serde_json::json!({"metadata": {"labels": {"karpenter.sh/nodepool": "p"}}}),
        serde_json::json!({"metadata": {"finalizers": ["karpenter.sh/termination"]}}),
        serde_json::json!({"spec": {"taints": [{"key": "karpenter.sh/unregistered", "effect": "NoExecute"}]}}),
    ] {
        let target = node(json.clone());
        assert!(target.is_karpenter_node && !target.registered, "{json}");
    }
    let plain =
        node(serde_json::json!({"metadata": {"annotations": {"nodekeeper.dev/do-not-disrupt": "false"}}}));
    assert!(!plain.is_karpenter_node && plain.opted_out.is_none() && plain.group == "ungrouped");
    for json in [
        serde_json::json!({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}),
        serde_json::json!({"spec": {"taints": [{"key": "node-role.kubernetes.io/master", "effect": "NoSchedule"}]}}),
    ] {
        assert!(node(json.clone()).control_plane, "{json}");
    }
    assert!(!plain.control_plane);
    for key in ["ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted"] {
        let going = node(serde_json::json!({"spec": {"taints": [{"key": key, "effect": "NoSchedule"}]}}));
        assert!(going.terminating, "{key}");
    }
}
