//! Manifests, chart, images, releases and the commands of the documents.

mod deploy_alerts;
mod deploy_helm;
mod deploy_images;
mod deploy_manifests;
mod deploy_release;
mod documents;
