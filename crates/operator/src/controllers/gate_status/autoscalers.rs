//! Finds the autoscalers of the cluster.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client, ResourceExt as _};
use nodekeeper_core::autoscaler::{Autoscalers, Pool};

use crate::runtime::call::{READ_TIMEOUT, call};

/// Reads Karpenter's `NodePools` and whether Cluster Autoscaler runs.
pub async fn read(client: &Client) -> Autoscalers {
    let kind = GroupVersionKind::gvk("karpenter.sh", "v1", "NodePool");
    let pools: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::from_gvk(&kind));
    let pools = match call(READ_TIMEOUT, pools.list(&ListParams::default().limit(500))).await {
        Ok(list) => Ok(list.items.iter().map(|pool| Pool::new(&pool.name_any(), &pool.data)).collect()),
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        Err(error) => Err(error.to_string()),
    };
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-system");
    let status = call(READ_TIMEOUT, maps.get_opt("cluster-autoscaler-status")).await;
    Autoscalers { pools, cluster_autoscaler: matches!(status, Ok(Some(_))) }
}
