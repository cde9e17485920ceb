//! Reads `worker.initContainers`, and `worker.volumes`, which kube-node-ready does not have.

use nodekeeper_core::api::{
    ConfigMapVolume, EmptyDir, EnvVar, HostPathVolume, InitContainer, SecurityContext, Volume, VolumeMount,
    Worker,
};
use nodekeeper_core::worker::{CHECK_PREFIX, CONTAINER};

use super::section::{Field, Section};
use super::validators;
use super::worker::resources;

pub fn read(section: &mut Section, worker: &mut Worker) {
    if let Some(field) = section.take("volumes") {
        worker.volumes = field.items(8).iter().filter_map(volume).collect();
    }
    let Some(field) = section.take("initContainers") else { return };
    let known = |name: &str| worker.volumes.iter().any(|volume| volume.name == name);
    let mut containers: Vec<InitContainer> = Vec::new();
    for item in field.items(8) {
        let Some(container) = container(&item, &known) else { continue };
        if let Some(why) = misnamed(&container.name, &containers) {
            item.wrong(format!("its name is '{}', {why}: name it otherwise", container.name));
        }
        containers.push(container);
    }
    worker.init_containers = containers;
}

/// Why a container cannot have this name.
fn misnamed(name: &str, others: &[InitContainer]) -> Option<&'static str> {
    if name == CONTAINER {
        Some("as the container that runs the checks")
    } else if name.starts_with(CHECK_PREFIX) {
        Some("and `check-` begins the names of exec checks")
    } else if others.iter().any(|other| other.name == name) {
        Some("as that of another init container")
    } else {
        None
    }
}

fn volume(item: &Field) -> Option<Volume> {
    let mut section = item.section();
    let name = needed(item, &mut section, "name", validators::is_label, validators::LABEL);
    let mut kinds = 0;
    let empty_dir = section.take("emptyDir").map(|field| {
        kinds += 1;
        field.section().end();
        EmptyDir {}
    });
    let config_map = section.take("configMap").map(|field| {
        kinds += 1;
        let mut below = field.section();
        let name = needed(&field, &mut below, "name", validators::is_name, validators::NAME);
        below.end();
        ConfigMapVolume { name: name.unwrap_or_default(), ..ConfigMapVolume::default() }
    });
    let host_path = section.take("hostPath").map(|field| {
        kinds += 1;
        let mut below = field.section();
        let path = needed(
            &field,
            &mut below,
            "path",
            validators::is_path,
            "is not an absolute path: begin it with `/`",
        );
        below.end();
        HostPathVolume { path: path.unwrap_or_default() }
    });
    section.end();
    if kinds != 1 {
        item.wrong("needs one of `emptyDir: {}`, `configMap: {name: …}` and `hostPath: {path: …}`");
    }
    Some(Volume { name: name?, empty_dir, config_map, host_path, ..Volume::default() })
}

fn needed(
    of: &Field,
    section: &mut Section,
    key: &'static str,
    right: fn(&str) -> bool,
    fix: &str,
) -> Option<String> {
    let field = section.take(key);
    if field.is_none() {
        of.wrong(format!("has no `{key}`"));
    }
    field?.checked(right, fix)
}

fn container(item: &Field, known: &impl Fn(&str) -> bool) -> Option<InitContainer> {
    let mut section = item.section();
    let name = needed(item, &mut section, "name", validators::is_label, validators::LABEL);
    let image = needed(item, &mut section, "image", validators::is_image, validators::IMAGE);
    let command = section.take("command").map(|field| texts(&field)).unwrap_or_default();
    let args = section.take("args").map(|field| arguments(&field)).unwrap_or_default();
    let env = section.take("env").map(|field| field.items(32).iter().filter_map(variable).collect());
    let mounts = section.take("volumeMounts").map(|field| field.items(8));
    let mounts = mounts.unwrap_or_default().iter().filter_map(|item| mount(item, known)).collect();
    let resources = section.take("resources").map(|field| resources(&field));
    let security_context = section.take("securityContext").map(|field| context(&field));
    let working_dir =
        section.take("workingDir").and_then(validators::optional).and_then(|field| field.text());
    section.end();
    Some(InitContainer {
        name: name?,
        image: image?,
        command,
        args,
        env: env.unwrap_or_default(),
        volume_mounts: mounts,
        resources,
        security_context,
        working_dir,
    })
}

fn texts(field: &Field) -> Vec<String> {
    let short = |text: &str| text.len() <= 4096;
    field.items(32).iter().filter_map(|item| item.checked(short, "is longer than 4096 bytes")).collect()
}

/// The example of kube-node-ready has `args: |`, which it cannot read itself. One text is one argument.
fn arguments(field: &Field) -> Vec<String> {
    if field.is_list() || field.is_map() {
        return texts(field);
    }
    field.text().into_iter().collect()
}

fn variable(item: &Field) -> Option<EnvVar> {
    let mut section = item.section();
    let right = |name: &str| !name.is_empty() && name.len() <= 253 && !name.contains(['=', ' ']);
    let name = needed(item, &mut section, "name", right, "is not a valid name of a variable");
    let value = section.take("value").map(|field| field.text());
    section.end();
    Some(EnvVar { name: name?, value: value.unwrap_or(Some(String::new()))?, value_from: None })
}

fn mount(item: &Field, known: &impl Fn(&str) -> bool) -> Option<VolumeMount> {
    let mut section = item.section();
    let name = needed(item, &mut section, "name", validators::is_label, validators::LABEL);
    let mount_path = needed(
        item,
        &mut section,
        "mountPath",
        validators::is_path,
        "is not an absolute path: begin it with `/`",
    );
    let read_only = section.take("readOnly").and_then(|field| field.bool()).unwrap_or_default();
    let sub_path = section.take("subPath").and_then(validators::optional).and_then(|field| field.text());
    section.end();
    let name = name?;
    if !known(&name) {
        item.wrong(format!(
            "there is no volume '{name}': add it to `worker.volumes`, for example `- {{name: {name}, emptyDir: {{}}}}`"
        ));
    }
    Some(VolumeMount { name, mount_path: mount_path?, read_only, sub_path })
}

fn context(field: &Field) -> SecurityContext {
    let mut section = field.section();
    let flag = |section: &mut Section, key| section.take(key).and_then(|field| field.bool());
    let id = |section: &mut Section, key| {
        section.take(key).and_then(|field| field.int(0..=i32::MAX)).map(i64::from)
    };
    let context = SecurityContext {
        privileged: flag(&mut section, "privileged"),
        read_only_root_filesystem: flag(&mut section, "readOnlyRootFilesystem"),
        run_as_non_root: flag(&mut section, "runAsNonRoot"),
        run_as_user: id(&mut section, "runAsUser"),
        run_as_group: id(&mut section, "runAsGroup"),
        allow_privilege_escalation: flag(&mut section, "allowPrivilegeEscalation"),
    };
    section.end();
    context
}
