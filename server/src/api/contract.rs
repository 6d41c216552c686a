//! The wire contract: its services and methods, those included that this version does not have.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use prost::Message as _;
use prost_types::FileDescriptorSet;
use revd_member::error::Status;

/// The older name of the reflection protocol, the same on the wire.
pub(super) const REFLECTION_ALPHA: &str = "grpc.reflection.v1alpha.ServerReflection";

/// Every service of the wire contract with its methods.
pub(super) fn services() -> &'static BTreeMap<String, Vec<String>> {
    static SERVICES: OnceLock<BTreeMap<String, Vec<String>>> = OnceLock::new();
    SERVICES.get_or_init(|| {
        let files = descriptors();
        let services = files.file.iter().flat_map(|file| {
            file.service.iter().map(|service| {
                let methods = service.method.iter().map(|method| method.name().to_owned()).collect();
                (format!("{}.{}", file.package(), service.name()), methods)
            })
        });
        let mut services: BTreeMap<String, Vec<String>> = services.collect();
        services.insert(REFLECTION_ALPHA.to_owned(), vec!["ServerReflectionInfo".to_owned()]);
        services
    })
}

/// The wire contract's own description.
///
/// # Panics
/// Never: it is made by our build.
#[must_use]
pub(super) fn descriptors() -> FileDescriptorSet {
    FileDescriptorSet::decode(revd_proto::DESCRIPTORS).expect("made by the build of revd-proto")
}

/// The refusal of a method that this version does not have, in the words of grpc-go where there is
/// none in etcd either.
#[cold]
pub(super) fn unimplemented(path: &str) -> Status {
    let named = path.strip_prefix('/').and_then(|path| path.rsplit_once('/'));
    let Some((service, method)) = named else {
        return Status::unimplemented(format!("malformed method name: {path:?}"));
    };
    match services().get(service) {
        None => Status::unimplemented(format!("unknown service {service}")),
        Some(methods) if methods.iter().any(|known| known == method) => {
            Status::unimplemented(format!("{service}/{method} is not supported by this version of revd"))
        }
        Some(_) => Status::unimplemented(format!("unknown method {method} for service {service}")),
    }
}
