use std::marker::PhantomData;

use datastore::kubernetes::{ApiSource, CollectionError, Decode};
use datastore::watch::{ObjectChange, Watcher};
use futures::stream::unfold;
use libcalico::api::{
    HostEndpoint, IpPool, IpReservation, KubeControllersConfiguration, Node as CalicoNode,
    ObjectKey, Tier, WorkloadEndpoint,
};
use libcalico::ipam::Block;
use libcalico::store::Entry;

use super::Subscribers;
use super::running::RunningWatches;
use crate::context::Context;
use crate::watched::{
    Namespace, NetworkPolicy, Node, Pod, Projection, ProjectionOptions, Service, ServiceAccount,
    WatchedVm, WatchedVmi, object_key,
};

/// Declares one watch per line.
macro_rules! watches {
    (
        kubernetes { $($(#[$native_doc:meta])* $native:ident: $projection:ty,)* }
        calico { $($(#[$calico_doc:meta])* $calico:ident: $kind:ty,)* }
    ) => {
        /// The watches to which controllers can subscribe.
        #[derive(Default)]
        pub struct Watches {
            /// Optional parts of the projections. A controller that needs such a part sets the
            /// field of the part when the controller subscribes.
            pub options: ProjectionOptions,
            $($(#[$native_doc])* pub $native: Subscribers<$projection>,)*
            $($(#[$calico_doc])* pub $calico: Subscribers<Entry<$kind>>,)*
        }

        impl Watches {
            /// Starts the watches that have event handlers. The watches end with `context.stop`.
            pub fn start(self, context: &Context) -> RunningWatches {
                let mut running = RunningWatches::default();
                $(if self.$native.has_subscribers() {
                    let watch = Watcher::new(source::<$projection>(context, self.options));
                    let stats = watch.stats();
                    let events = unfold(watch, async |mut watch| Some((watch.next().await, watch)));
                    running.add(self.$native, stats, events, &context.metrics, &context.stop);
                })*
                $(if self.$calico.has_subscribers()
                    && let Some(watch) = context.calico.watch::<$kind>(&Default::default())
                {
                    let stats = watch.stats();
                    let events = unfold(watch, async |mut watch| Some((watch.next().await, watch)));
                    running.add(self.$calico, stats, events, &context.metrics, &context.stop);
                })*
                running
            }
        }
    };
}

watches! {
    kubernetes {
        /// Pods.
        pods: Pod,
        /// Nodes.
        nodes: Node,
        /// Namespaces.
        namespaces: Namespace,
        /// Service accounts.
        service_accounts: ServiceAccount,
        /// Network policies.
        network_policies: NetworkPolicy,
        /// Services.
        services: Service,
        /// KubeVirt's VirtualMachines, if KubeVirt is installed.
        virtual_machines: WatchedVm,
        /// KubeVirt's VirtualMachineInstances (VMIs), if KubeVirt is installed.
        vmis: WatchedVmi,
    }
    calico {
        /// Blocks.
        blocks: Block,
        /// IP pools.
        ip_pools: IpPool,
        /// Reservations.
        ip_reservations: IpReservation,
        /// Calico's nodes.
        calico_nodes: CalicoNode,
        /// Host endpoints.
        host_endpoints: HostEndpoint,
        /// Tiers.
        tiers: Tier,
        /// Configurations of kube-controllers.
        configurations: KubeControllersConfiguration,
        /// Workload endpoints (etcd only).
        workload_endpoints: WorkloadEndpoint,
    }
}

fn source<T: Projection>(
    context: &Context,
    options: ProjectionOptions,
) -> ApiSource<ProjectionDecoder<T>> {
    let projected = ProjectionDecoder {
        options,
        kind: PhantomData,
    };
    ApiSource::new(context.kubernetes.clone(), projected)
}

/// A decoder that keeps a projection of each object.
struct ProjectionDecoder<T> {
    options: ProjectionOptions,
    kind: PhantomData<fn() -> T>,
}

impl<T: Projection> Decode for ProjectionDecoder<T> {
    type Value = T;
    type Key = ObjectKey;

    fn kind(&self) -> &'static str {
        T::OBJECT
    }

    fn is_metadata_only(&self) -> bool {
        T::METADATA_ONLY
    }

    async fn collection(&mut self) -> Result<String, CollectionError> {
        Ok(T::COLLECTION.into())
    }

    fn decode(&mut self, object: &str) -> Option<ObjectChange<T, ObjectKey>> {
        Some(match T::project(object, self.options) {
            Ok(projection) => ObjectChange::Upsert(projection),
            Err(error) => {
                let key = self.decode_key(object);
                let name = key.as_ref().map(ObjectKey::to_string).unwrap_or_default();
                ObjectChange::Unreadable {
                    name,
                    key,
                    reason: error.to_string(),
                }
            }
        })
    }

    fn decode_key(&mut self, object: &str) -> Option<ObjectKey> {
        object_key(object).ok()
    }
}
