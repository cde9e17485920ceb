//! Who replaces a replacement.

use super::*;
use crate::api::CauseSelector;
use crate::remediate::provider::{Claims, find};
use k8s_openapi::api::core::v1::Node;

fn bare() -> Target {
    Target { is_karpenters: false, owner: None, ..target("n1") }
}

fn found(target: &Target, claims: Vec<ClaimView>) -> Replacement {
    find(target, &Claims::Known(claims), true)
}

fn by_id(name: &str) -> ClaimView {
    ClaimView { provider_id: "cloud://n1".into(), ..claim(name) }
}

fn by_name(name: &str) -> ClaimView {
    ClaimView { node_name: "node-n1".into(), ..claim(name) }
}

#[test]
fn a_claim_is_found_by_owner_then_by_machine_then_by_name() {
    let owned = Target { owner: Some(("own".into(), "uid-own".into())), ..target("n1") };
    let all = || vec![by_name("name"), by_id("id"), claim("own")];
    assert_eq!(found(&owned, all()), Replacement::Claim(claim("own")));
    assert_eq!(found(&target("n1"), all()), Replacement::Claim(by_id("id")));
    assert_eq!(
        found(&target("n1"), vec![by_name("name"), claim("other")]),
        Replacement::Claim(by_name("name"))
    );
    assert_eq!(found(&bare(), vec![by_id("id")]), Replacement::Claim(by_id("id")), "whatever marks it bears");
}

#[test]
fn i08_a_name_alone_never_leads_to_another_machine() {
    let other = ClaimView { provider_id: "cloud://new".into(), ..by_name("new") };
    assert_eq!(
        found(&target("n1"), vec![other]),
        Replacement::ClaimMissing,
        "that replacement only has the name"
    );
    let owned = Target { owner: Some(("gone".into(), "uid-gone".into())), ..target("n1") };
    assert_eq!(found(&owned, vec![by_name("new")]), Replacement::ClaimMissing, "its owner was another");
    assert_eq!(found(&owned, vec![by_id("same")]), Replacement::Claim(by_id("same")));
    let mut nameless = target("n1");
    nameless.identity.provider_id = String::new();
    let unset = ClaimView { node_name: "x".into(), ..claim("unset") };
    assert_eq!(
        found(&nameless, vec![unset]),
        Replacement::ClaimMissing,
        "two that say nothing are not the same"
    );
}

#[test]
fn between_two_claims_nobody_guesses() {
    for pair in [[by_name("one"), by_name("two")], [by_id("one"), by_id("two")]] {
        let Replacement::Unreadable(why) = found(&target("n1"), pair.to_vec()) else { panic!("{pair:?}") };
        assert!(why.contains("one") && why.contains("two") && why.contains("delete the wrong one"), "{why}");
    }
}

#[test]
fn f14_what_cannot_be_read_never_leads_to_a_bare_delete() {
    // The seed asked for NodeClaims by a version that is served no more, and deleted the Node instead.
    let karpenters = target("n1");
    for claims in [Claims::NotServed, Claims::Unreadable("403 Forbidden".into())] {
        let replacement = find(&karpenters, &claims, true);
        assert!(matches!(replacement, Replacement::Unreadable(_)), "{replacement:?}");
        let world = World::with(|world| world.replacement = replacement.clone());
        assert_eq!(world.hold(), Some(BlockReason::ProviderUnreadable));
    }
    assert!(matches!(find(&bare(), &Claims::Unreadable("timeout".into()), true), Replacement::Unreadable(_)));
    let missing = found(&karpenters, vec![]);
    assert_eq!(missing, Replacement::ClaimMissing);
    assert_eq!(
        World::with(|world| world.replacement = missing).hold(),
        Some(BlockReason::ProviderUnreadable)
    );
}

#[test]
fn a_node_object_is_deleted_only_if_the_policy_allows_it() {
    for claims in [Claims::NotServed, Claims::Known(vec![claim("other")])] {
        assert_eq!(find(&bare(), &claims, true), Replacement::NodeObject);
        assert_eq!(find(&bare(), &claims, false), Replacement::Nobody);
    }
    assert_eq!(World::with(|world| world.replacement = Replacement::NodeObject).hold(), None);
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
fn a_claim_is_left_to_karpenter_until_it_is_registered_and_once_it_is_deleted() {
    let unregistered = World::with(|world| world.target().registered = false);
    assert_eq!(unregistered.hold(), Some(BlockReason::NotRegistered));
    let unknown = World::with(|world| {
        world.target().registered = false;
        world.replacement = Replacement::ClaimMissing;
    });
    assert_eq!(unknown.hold(), Some(BlockReason::NotRegistered), "its claim is not known yet");
    let deleting = ClaimView { deleting: true, ..claim("c1") };
    assert_eq!(
        World::with(|world| world.replacement = Replacement::Claim(deleting)).hold(),
        Some(BlockReason::BeingRemoved)
    );
    let providers = [
        Replacement::Claim(claim("c")),
        Replacement::ClaimMissing,
        Replacement::NodeObject,
        Replacement::Nobody,
    ];
    assert_eq!(providers.map(|one| one.provider()), ["karpenter", "karpenter", "kubernetes", "none"]);
}

fn node(json: serde_json::Value) -> Target {
    Target::new(&serde_json::from_value::<Node>(json).expect("a Node"))
}

#[test]
fn a_node_says_whose_it_is_and_what_it_is_made_from() {
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
    assert!(of.is_karpenters && of.registered && of.unschedulable && !of.control_plane && !of.terminating);
    assert_eq!((of.cordoned_for.as_deref(), of.opted_out), (Some("u"), Some("karpenter.sh/do-not-disrupt")));
    let attributes: Vec<(&str, &str)> = of.attributes.iter().map(|(key, value)| (&**key, &**value)).collect();
    assert_eq!(attributes, [("image", "Linux 1"), ("type", "m5"), ("zone", "a")]);
}

#[test]
fn karpenter_is_known_by_any_of_its_marks_and_the_control_plane_too() {
    for json in [
        serde_json::json!({"metadata": {"labels": {"karpenter.sh/nodepool": "p"}}}),
        serde_json::json!({"metadata": {"finalizers": ["karpenter.sh/termination"]}}),
        serde_json::json!({"spec": {"taints": [{"key": "karpenter.sh/unregistered", "effect": "NoExecute"}]}}),
    ] {
        let target = node(json.clone());
        assert!(target.is_karpenters && !target.registered, "{json}");
    }
    let plain =
        node(serde_json::json!({"metadata": {"annotations": {"nodekeeper.dev/do-not-disrupt": "false"}}}));
    assert!(!plain.is_karpenters && plain.opted_out.is_none() && plain.group == "ungrouped");
    for json in [
        serde_json::json!({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}),
        serde_json::json!({"spec": {"taints": [{"key": "node-role.kubernetes.io/master", "effect": "NoSchedule"}]}}),
    ] {
        assert!(node(json.clone()).control_plane, "{json}");
    }
    for key in ["ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted"] {
        let going = node(serde_json::json!({"spec": {"taints": [{"key": key, "effect": "NoSchedule"}]}}));
        assert!(going.terminating, "{key}");
    }
}
