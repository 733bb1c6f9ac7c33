//! The kinds that configure the cluster as a whole: ClusterInformation and
//! KubeControllersConfiguration.

use serde_json::Value;

use super::custom_resource::{CustomResource, Field};
use crate::api::{
    ClusterInformationSpec, KubeControllersConfigurationSpec, KubeControllersConfigurationStatus,
};
use crate::kubernetes::ApiGroup;

pub(super) fn cluster_information(group: ApiGroup) -> Value {
    let about = "Information about the whole cluster. The only object is named default.";
    CustomResource::new::<ClusterInformationSpec>(
        group,
        "ClusterInformation",
        "clusterinformations",
        about,
    )
    .short_names(&["clusterinfo", "clusterinfos"])
    .definition
}

pub(super) fn kube_controllers(group: ApiGroup) -> Value {
    let (kind, plural) = (
        "KubeControllersConfiguration",
        "kubecontrollersconfigurations",
    );
    let about = "Settings of kube-controllers. The only object is named default.";
    CustomResource::new::<KubeControllersConfigurationSpec>(group, kind, plural, about)
        .spec(fields)
        .status::<KubeControllersConfigurationStatus>(
            "Settings with which kube-controllers runs.",
            |status| {
                fields(&mut status.at("runningConfig"));
            },
        )
        .definition
}

/// Adds what the type of the settings cannot express. `spec` is the schema of the `spec` or of
/// `runningConfig`, which has the same fields.
fn fields(spec: &mut Field<'_>) {
    spec.required(&["controllers"]);
    spec.at("healthChecks").default("Enabled");
    spec.at("debugProfilePort").set("format", "int32");
    let mut controllers = spec.at("controllers");
    controllers
        .at("loadBalancer")
        .at("assignIPs")
        .default("AllServices");
    controllers
        .at("migration")
        .at("policyNameMigrator")
        .default("Enabled");
}
