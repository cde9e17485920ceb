//! Scenarios of the gate and of remediation, each run on the embedded cluster and on a real control plane. A name
//! that begins with `f` and a number is about that known flaw of kube-node-ready.

mod audit;
mod configuration;
mod controller_crash;
mod drain;
mod fake_kubelet;
mod gate_changes;
mod gate_selection;
mod injection;
mod interference;
mod no_side_effects;
mod outages;
mod remediation;
mod remediation_limits;
mod reverification;
mod scale;
mod schema_rules;
mod simulated;
mod verification;
mod worker_loss;

/// Each scenario becomes one test in each world.
macro_rules! scenarios {
    ($($module:ident { $($name:ident,)+ })+) => {
        mod on_the_embedded_cluster {
            use anyhow::Result;

            use nodekeeper_e2e::scenario::on_a_paused_clock;

            use crate::simulated::Simulated;

            $($(
                #[test]
                fn $name() -> Result<()> {
                    on_a_paused_clock(async { crate::$module::$name(Simulated::start()?).await })
                }
            )+)+
        }

        mod on_a_real_control_plane {
            use anyhow::Result;
            use nodekeeper_e2e::or_skip;

            use crate::fake_kubelet::FakeKubeletWorld;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn invalid_gates_are_refused_with_a_fix() -> Result<()> {
                let Some(world) = or_skip(FakeKubeletWorld::start().await)? else { return Ok(()) };
                crate::schema_rules::invalid_gates_are_refused_with_a_fix(world).await
            }

            /// The embedded server has no admission policies.
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn g01_a_refused_opening_is_reported() -> Result<()> {
                let Some(world) = or_skip(FakeKubeletWorld::start().await)? else { return Ok(()) };
                crate::interference::g01_a_refused_opening_is_reported(world).await
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn u02_a_configuration_that_the_server_refuses_is_reported() -> Result<()> {
                let Some(world) = or_skip(FakeKubeletWorld::start().await)? else { return Ok(()) };
                crate::configuration::u02_a_configuration_that_the_server_refuses_is_reported(world).await
            }

            $($(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() -> Result<()> {
                    let Some(world) = or_skip(FakeKubeletWorld::start().await)? else { return Ok(()) };
                    crate::$module::$name(world).await
                }
            )+)+
        }
    };
}

/// These scenarios wait minutes for comparisons and deadlines, so they run only on the paused clock of the embedded
/// cluster. The other scenarios cover the API server's part.
macro_rules! embedded {
    ($($module:ident { $($name:ident,)+ })+) => {
        mod on_a_clock_of_its_own {
            use anyhow::Result;

            use nodekeeper_e2e::scenario::on_a_paused_clock;

            use crate::simulated::Simulated;

            $($(
                #[test]
                fn $name() -> Result<()> {
                    on_a_paused_clock(async { crate::$module::$name(Simulated::start()?).await })
                }
            )+)+
        }
    };
}

embedded! {
    remediation {
        a_crash_at_any_write_completes_a_replacement_once,
    }
    remediation_limits {
        a_dry_run_reports_the_replacement,
        a_node_without_a_provider_is_kept,
        nodes_and_pods_that_opted_out_are_not_disrupted,
        control_plane_nodes_are_kept_unless_named,
        replacements_stay_within_the_budget,
    }
    drain {
        a_drain_blocked_by_a_budget_times_out_and_can_be_retried,
        a_pause_ends_a_drain_and_uncordons_the_node,
        a_users_cordon_is_kept,
    }
}

scenarios! {
    remediation {
        a_node_that_never_passes_is_replaced,
        a_user_requests_a_replacement,
        i08_a_new_node_with_the_same_name_is_not_touched,
    }
    outages {
        i02_a_dns_outage_replaces_no_node,
    }
    verification {
        f01_a_passed_worker_removes_the_taint,
        f04_long_node_names_work,
        f05_a_worker_is_bound_by_node_name,
        f07_a_node_that_is_tainted_again_is_verified_again,
        f08_a_failed_attempt_is_followed_by_the_next,
        f09_a_failed_node_is_reported_and_recovers,
        f11_finished_workers_are_deleted,
        f16_no_worker_before_the_node_is_ready,
        a_forged_label_does_not_remove_the_taint,
        a_new_node_with_the_same_name_is_verified_again,
    }
    worker_loss {
        a_deleted_worker_is_created_again,
        an_evicted_worker_is_inconclusive,
        an_oom_killed_worker_is_inconclusive,
        an_image_pull_error_is_inconclusive,
        a_deleted_node_frees_its_worker_slot,
        a_quota_that_refuses_workers_uses_no_attempt,
    }
    controller_crash {
        f06_a_crash_at_any_write_loses_nothing,
        f06_the_next_leader_waits_for_the_same_worker,
        f10_a_failed_read_is_not_a_lost_worker,
        f12_only_worker_pods_are_read,
    }
    scale {
        f03_only_the_gates_taints_are_removed,
        f15_failing_nodes_do_not_starve_healthy_ones,
        f15_a_thousand_nodes_stay_within_the_worker_limit,
    }
    gate_changes {
        an_edited_gate_discards_earlier_verdicts,
        a_deleted_gate_leaves_the_taint,
        a_paused_gate_removes_no_taint,
    }
    gate_selection {
        a_dry_run_emits_events_and_writes_no_node,
        the_gate_waits_for_a_daemon_set,
        the_gate_with_higher_priority_applies,
        g08_each_of_two_gates_verifies_a_node_again,
        a_tainted_node_without_a_gate_gets_an_event,
    }
    audit {
        g14_an_audit_admits_every_node_and_counts,
    }
    interference {
        g03_a_taint_that_comes_back_is_reported,
        r01_a_node_freed_by_hand_is_not_replaced,
        r02_a_policy_made_anew_revives_no_approval,
        r07_a_pod_with_two_budgets_blocks_no_other,
    }
    injection {
        g02_injected_containers_decide_nothing,
    }
    configuration {
        u02_an_upgrade_patches_only_what_its_values_changed,
        u02_an_object_that_is_dropped_from_the_values_stays,
        u02_objects_of_earlier_releases_are_adopted,
    }
    no_side_effects {
        f13_nodes_that_fail_are_not_deleted,
        f14_nodes_are_only_read_and_patched,
    }
    reverification {
        f07_a_removed_label_is_set_again_by_a_worker,
        f07_a_verified_node_is_verified_on_request,
        f07_a_failed_node_is_verified_on_request,
        f07_a_rebooted_node_is_verified_again,
        f07_only_a_failure_taints_a_verified_node,
    }
}
