//! Users of servers that a run starts itself: root, and one that may read and write all keys, in
//! whose name the load is.

use prost::Message;
use revd_proto::authpb::Permission;
use revd_proto::etcdserverpb::{
    AuthEnableRequest, AuthRoleAddRequest, AuthRoleGrantPermissionRequest, AuthUserAddRequest,
    AuthUserGrantRoleRequest,
};

use crate::login::ask;
use crate::wire::RpcMethod;
use crate::wire::users::Credentials;

/// The user of the load, and its password. Its servers listen on this machine alone, and end with
/// the run.
pub const NAME: &str = "loadgen";

/// Makes both users and switches auth on; returns the second.
///
/// # Errors
/// With the call that was refused.
pub fn set_up(endpoint: &str) -> anyhow::Result<Credentials> {
    let call = |path: &'static str, request: &dyn Encoded| {
        ask(endpoint, RpcMethod::Other(path), &request.encoded()).map(drop)
    };
    let text = str::to_owned;
    for (user, role) in [("root", "root"), (NAME, NAME)] {
        let (name, password) = (text(user), text(NAME));
        let add = AuthUserAddRequest { name, password, ..AuthUserAddRequest::default() };
        call("/etcdserverpb.Auth/UserAdd", &add)?;
        call("/etcdserverpb.Auth/RoleAdd", &AuthRoleAddRequest { name: text(role) })?;
        let grant = AuthUserGrantRoleRequest { user: text(user), role: text(role) };
        call("/etcdserverpb.Auth/UserGrantRole", &grant)?;
    }
    // From the first key on, reading and writing.
    let perm = Some(Permission { perm_type: 2, key: "\0".into(), range_end: "\0".into() });
    let permit = AuthRoleGrantPermissionRequest { name: text(NAME), perm };
    call("/etcdserverpb.Auth/RoleGrantPermission", &permit)?;
    call("/etcdserverpb.Auth/AuthEnable", &AuthEnableRequest {})?;
    Ok(Credentials { name: text(NAME), password: text(NAME) })
}

/// Any message.
trait Encoded {
    fn encoded(&self) -> Vec<u8>;
}

impl<M: Message> Encoded for M {
    fn encoded(&self) -> Vec<u8> {
        self.encode_to_vec()
    }
}
