//! What the API server permits to the controller. A review is a POST that stores nothing, so it needs neither lease nor guard.

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::Api;
use kube::api::PostParams;
use nodekeeper_core::remediate::Right;

use super::Writer;
use crate::runtime::call::{CallError, READ_TIMEOUT, call};

impl Writer {
    pub async fn is_permitted(&self, right: Right) -> Result<bool, CallError> {
        let part = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let attributes = ResourceAttributes {
            verb: part(right.verb),
            group: part(right.group),
            resource: part(right.resource),
            subresource: part(right.subresource),
            ..ResourceAttributes::default()
        };
        let spec =
            SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
        let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
        let reviews: Api<SelfSubjectAccessReview> = self.all();
        let answer = call(READ_TIMEOUT, reviews.create(&PostParams::default(), &review)).await?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }
}
