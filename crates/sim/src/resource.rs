//! A kind of object and how the API server treats it.

use std::any::TypeId;
use std::borrow::Cow;
use std::sync::Arc;

use crate::value::Value;
use k8s_openapi::{NamespaceResourceScope, Resource as Typed};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::api::schema::Schema;
use crate::registry::{self, Strategy};

/// The lists of every object that a strategic merge patch merges by a key.
const META_LISTS: &[(&str, &str)] =
    &[("metadata.ownerReferences", "uid"), ("metadata.finalizers", PRIMITIVE), ("status.conditions", "type")];
/// The lists of every pod spec.
const POD_SPEC_LISTS: &[(&str, &str)] = &[
    ("volumes", "name"),
    ("imagePullSecrets", "name"),
    ("hostAliases", "ip"),
    ("topologySpreadConstraints", "topologyKey"),
    ("resourceClaims", "name"),
    ("schedulingGates", "name"),
];
/// The lists of every container.
const CONTAINER_LISTS: &[(&str, &str)] = &[
    ("env", "name"),
    ("ports", "containerPort"),
    ("volumeMounts", "mountPath"),
    ("volumeDevices", "devicePath"),
];

/// The merge key of a list of primitive values.
pub const PRIMITIVE: &str = "";

/// When `metadata.generation` is incremented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    Never,
    /// It is always 1.
    First,
    Spec,
    /// When anything but `metadata` (and a `status` subresource) changes.
    NotMetadata,
}

/// Another API of a stored resource, with other names for some fields.
#[derive(Clone, Debug)]
pub struct View {
    stored_version: &'static str,
    names: &'static [(&'static str, &'static str)],
}

#[expect(clippy::struct_excessive_bools, reason = "each is an independent property of a kind")]
#[derive(Clone, Debug)]
pub struct Resource {
    /// Empty for the core group.
    pub group: Cow<'static, str>,
    pub version: Cow<'static, str>,
    pub plural: Cow<'static, str>,
    pub kind: Cow<'static, str>,
    pub singular: String,
    pub short: Vec<String>,
    pub namespaced: bool,
    /// Whether `/status` is a subresource, so that other writes ignore `status`.
    pub has_status: bool,
    /// Whether `status` is kept on create (a kubelet registers its Node with one).
    pub keeps_status: bool,
    /// Whether DELETE returns the object, not a `Status`.
    pub returns_deleted: bool,
    /// Whether PUT creates a missing object.
    pub create_on_update: bool,
    /// Whether PUT requires a resource version.
    pub guarded_update: bool,
    pub generation: Generation,
    /// `additionalPrinterColumns` of a custom resource.
    pub columns: Vec<Value>,
    pub schema: Option<Schema>,
    /// The storage version of a custom resource.
    pub stored_version: Option<String>,
    pub strategy: &'static dyn Strategy,
    collection: String,
    decode: Option<Decode>,
    view: Option<View>,
    fields: Vec<String>,
    merge_keys: Vec<(String, &'static str)>,
    replaced: Vec<&'static str>,
}

/// Decodes an object by its type and encodes it again.
type Decode = fn(&Value) -> Result<Value, serde_json::Error>;

/// The resource of a `k8s-openapi` type.
pub(crate) fn kind<T: Typed + Serialize + DeserializeOwned>(short: &[&str]) -> Resource
where
    T::Scope: 'static,
{
    let mut resource = Resource::new(T::GROUP, T::VERSION, T::URL_PATH_SEGMENT, T::KIND);
    resource.short = short.iter().map(ToString::to_string).collect();
    resource.namespaced = TypeId::of::<T::Scope>() == TypeId::of::<NamespaceResourceScope>();
    resource.decode = Some(|value| Ok(serde_json::to_value(value.decode::<T>()?)?.into()));
    resource.lists(META_LISTS)
}

impl Resource {
    /// A namespaced resource that is only stored.
    pub fn new(
        group: impl Into<Cow<'static, str>>,
        version: impl Into<Cow<'static, str>>,
        plural: impl Into<Cow<'static, str>>,
        kind: impl Into<Cow<'static, str>>,
    ) -> Self {
        let (group, plural, kind) = (group.into(), plural.into(), kind.into());
        let collection = if group.is_empty() { plural.to_string() } else { format!("{group}/{plural}") };
        Self {
            group,
            version: version.into(),
            plural,
            collection,
            singular: kind.to_lowercase(),
            kind,
            short: Vec::new(),
            namespaced: true,
            has_status: false,
            keeps_status: false,
            returns_deleted: false,
            create_on_update: false,
            guarded_update: false,
            generation: Generation::Never,
            columns: Vec::new(),
            schema: None,
            stored_version: None,
            strategy: &registry::DefaultStrategy,
            decode: None,
            view: None,
            fields: Vec::new(),
            merge_keys: Vec::new(),
            replaced: Vec::new(),
        }
    }

    pub(crate) fn status(mut self) -> Self {
        self.has_status = true;
        self
    }
    pub(crate) fn keeps_status(mut self) -> Self {
        self.keeps_status = true;
        self
    }
    pub(crate) fn returns_deleted(mut self) -> Self {
        self.returns_deleted = true;
        self
    }
    pub(crate) fn create_on_update(mut self) -> Self {
        self.create_on_update = true;
        self
    }
    pub(crate) fn guarded_update(mut self) -> Self {
        self.guarded_update = true;
        self
    }
    pub(crate) fn generation(mut self, generation: Generation) -> Self {
        self.generation = generation;
        self
    }
    pub(crate) fn strategy(mut self, strategy: &'static dyn Strategy) -> Self {
        self.strategy = strategy;
        self
    }
    pub(crate) fn fields(self, fields: &[&str]) -> Self {
        self.select_by(fields.iter().map(ToString::to_string))
    }
    pub(crate) fn select_by(mut self, fields: impl Iterator<Item = String>) -> Self {
        self.fields.extend(fields);
        self
    }
    pub(crate) fn lists(mut self, lists: &[(&str, &'static str)]) -> Self {
        self.merge_keys.extend(lists.iter().map(|(path, key)| ((*path).to_owned(), *key)));
        self
    }
    /// Objects that a strategic merge patch replaces.
    pub(crate) fn replaced(mut self, paths: &[&'static str]) -> Self {
        self.replaced = paths.to_vec();
        self
    }
    pub(crate) fn pod_spec(mut self, at: &str) -> Self {
        for (list, key) in POD_SPEC_LISTS {
            self.merge_keys.push((format!("{at}.{list}"), key));
        }
        for containers in ["containers", "initContainers", "ephemeralContainers"] {
            self.merge_keys.push((format!("{at}.{containers}"), "name"));
            for (list, key) in CONTAINER_LISTS {
                self.merge_keys.push((format!("{at}.{containers}.{list}"), key));
            }
        }
        self
    }
    pub(crate) fn view_of(
        mut self,
        stored_as: &'static str,
        names: &'static [(&'static str, &'static str)],
    ) -> Self {
        stored_as.clone_into(&mut self.collection);
        self.view = Some(View { stored_version: "v1", names });
        self
    }

    /// `v1` or `group/v1`.
    #[must_use]
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_string()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    #[must_use]
    pub fn has_api_version(&self, api_version: &str) -> bool {
        match api_version.split_once('/') {
            Some((group, version)) => self.group == group && self.version == version,
            None => self.group.is_empty() && self.version == api_version,
        }
    }

    /// `pods` or `leases.coordination.k8s.io`, as in messages.
    #[must_use]
    pub fn qualified(&self) -> String {
        if self.group.is_empty() {
            self.plural.to_string()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }

    /// `Pod` or `Lease.coordination.k8s.io`, as in messages.
    #[must_use]
    pub fn qualified_kind(&self) -> String {
        if self.group.is_empty() { self.kind.to_string() } else { format!("{}.{}", self.kind, self.group) }
    }

    /// The collection of the stored objects, which versions and views of a kind share.
    #[must_use]
    pub fn collection(&self) -> &str {
        &self.collection
    }

    #[must_use]
    pub fn is_selectable(&self, field: &str) -> bool {
        field == "metadata.name"
            || (field == "metadata.namespace" && self.namespaced)
            || self.fields.iter().any(|f| f == field)
    }

    /// The merge key of the list at this path (without indices); none if a patch replaces the list.
    #[must_use]
    pub fn merge_key(&self, path: &str) -> Option<&'static str> {
        self.merge_keys.iter().find(|(p, _)| p == path).map(|(_, key)| *key)
    }

    #[must_use]
    pub fn is_replaced(&self, path: &str) -> bool {
        self.replaced.contains(&path)
    }

    #[must_use]
    pub fn is_custom(&self) -> bool {
        self.decode.is_none()
    }

    /// Drops unknown fields, or fails if the object does not fit its type.
    pub fn decode(&self, object: &Value) -> Result<Value, serde_json::Error> {
        self.decode.map_or_else(|| Ok(object.clone()), |decode| decode(object))
    }

    /// Converts an object of this resource to its stored form.
    #[must_use]
    pub fn to_stored(&self, mut object: Value) -> Value {
        if let Some(version) = &self.stored_version {
            crate::object::set(&mut object, "apiVersion", format!("{}/{version}", self.group).into());
        }
        let Some(view) = &self.view else { return object };
        crate::object::set(&mut object, "apiVersion", view.stored_version.into());
        rename(object, view.names.iter().map(|(mine, stored)| (*mine, *stored)))
    }

    /// Converts a stored object to this resource.
    #[must_use]
    pub fn from_stored(&self, mut object: Value) -> Value {
        if let Some(schema) = &self.schema {
            // The current schema applies when an object is read, even if it is newer.
            schema.prune(&mut object);
            schema.default(&mut object);
            crate::object::set(&mut object, "apiVersion", self.api_version().into());
        }
        let Some(view) = &self.view else { return object };
        let mut object = rename(object, view.names.iter().map(|(mine, stored)| (*stored, *mine)));
        crate::object::set(&mut object, "apiVersion", self.api_version().into());
        object
    }

    /// Converts a stored object without a copy if the forms are equal.
    #[must_use]
    pub fn shown(&self, object: &Arc<Value>) -> Arc<Value> {
        if self.schema.is_none() && self.view.is_none() {
            return object.clone();
        }
        Arc::new(self.from_stored((**object).clone()))
    }

    #[must_use]
    pub fn is_view(&self) -> bool {
        self.view.is_some()
    }
}

fn rename<'n>(mut object: Value, names: impl Iterator<Item = (&'n str, &'n str)>) -> Value {
    if let Some(map) = object.as_object_mut() {
        for (from, to) in names {
            if let Some(value) = map.remove(from) {
                map.insert(to, value);
            }
        }
    }
    object
}
