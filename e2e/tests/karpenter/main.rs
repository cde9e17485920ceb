//! Scenarios with a real Karpenter whose nodes are verified by the gate. They share
//! the helpers of the gate scenarios.

mod deletion;
mod karpenter_world;
mod log;
mod no_side_effects;
mod node_observer;
mod replacement;
mod verification;

macro_rules! scenarios {
    ($($module:ident { $($name:ident,)+ })+) => {
        mod with_a_real_karpenter {
            use anyhow::Result;
            use nodekeeper_e2e::or_skip;

            use crate::karpenter_world::KarpenterWorld;

            $($(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() -> Result<()> {
                    let Some(world) = or_skip(KarpenterWorld::start().await)? else { return Ok(()) };
                    crate::$module::$name(world).await
                }
            )+)+
        }
    };
}

scenarios! {
    verification {
        a_pool_scales_up_with_verified_nodes,
        no_node_is_verified_before_it_is_registered,
        a_taint_outside_startup_taints_is_reported,
        the_example_pool_matches_the_example_gate,
        nodes_are_verified_without_access_to_claims,
    }
    replacement {
        a_node_that_never_passes_has_its_claim_deleted,
        a_broken_pool_is_not_replaced_forever,
    }
    no_side_effects {
        an_unreadable_claim_blocks_deletion,
        a_node_drained_by_karpenter_is_not_touched,
        no_claim_is_deleted_before_its_node_is_registered,
    }
    deletion {
        a_node_removed_by_karpenter_is_left_alone,
    }
}
