//! Whether a member without data may begin: in a cluster that there is already, it takes the place
//! that was made for it, and no other; in a new one, it must not have begun before.

use revd_proto::etcdserverpb::Member;

use crate::cluster::Identity;
use crate::cluster::initial::InitialCluster;
use crate::cluster::version::{ClusterVersion, may_join};
use crate::urls;

/// A cluster as one of its members has it.
#[derive(Debug, Clone, PartialEq)]
pub struct RemoteCluster {
    /// Its id.
    pub id: u64,
    /// Its members.
    pub members: Vec<Member>,
    /// The cluster versions that members name which can be reached.
    pub versions: Vec<ClusterVersion>,
}

/// Why a member cannot begin; in etcd's words, where it has any.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// No member answers.
    #[error(
        "cannot fetch cluster info from peer urls: could not retrieve cluster information from the given URLs"
    )]
    NoAnswer,
    /// `--initial-cluster` does not name the members that there are.
    #[error("error validating peerURLs {0}: member count is unequal")]
    Count(String),
    /// `--initial-cluster` does not have a member's URLs.
    #[error(
        "error validating peerURLs {members}: PeerURLs: no match found for existing member ({id:x}, [{}]), last \
         resolver error ({difference})", urls.join(" ")
    )]
    NoMatch {
        /// All members.
        members: String,
        /// The one without a match.
        id: u64,
        /// Its URLs.
        urls: Vec<String>,
        /// How they differ from those that were compared last.
        difference: String,
    },
    /// Members of different versions cannot work together. A cluster has no version before its
    /// first leader has decided on it.
    #[error("incompatible with current running cluster: {}", why(*.0))]
    Incompatible(Option<ClusterVersion>),
    /// The member has lost its data, and with it what it has promised the others.
    #[error("member {0:x} has already been bootstrapped: remove it from the cluster, and add it again")]
    Bootstrapped(u64),
}

fn why(cluster: Option<ClusterVersion>) -> String {
    match cluster {
        Some(cluster) => format!("it has version {cluster}, start a program that can work with it"),
        None => "no member names its version; start again when it has a leader".to_owned(),
    }
}

/// The place of this member in a cluster that there is, and all members.
///
/// # Errors
/// [`JoinError`]
pub fn join(
    initial: &InitialCluster,
    version: ClusterVersion,
    remote: Option<RemoteCluster>,
    resolve: &mut dyn FnMut(&str) -> Option<String>,
) -> Result<(Identity, Vec<Member>), JoinError> {
    let RemoteCluster { id: cluster, members, versions } = remote.ok_or(JoinError::NoAnswer)?;
    let shown = || {
        let pairs = members.iter().map(|member| format!("{:x}={}", member.id, member.peer_ur_ls.join(",")));
        format!("{{ClusterID:{cluster:x} Members:[{}]}}", pairs.collect::<Vec<_>>().join(" "))
    };
    if members.len() != initial.members.len() {
        return Err(JoinError::Count(shown()));
    }
    let mut own = None;
    for member in &members {
        let mut urls = member.peer_ur_ls.clone();
        urls.sort();
        let mut difference = String::new();
        let mut is_same =
            |named: &[String]| urls::are_same(&urls, named, resolve).map_err(|why| difference = why).is_ok();
        // No name is asked for where the texts say enough.
        let found = initial.members.iter().find(|(_, named)| **named == urls);
        let found = found.or_else(|| initial.members.iter().find(|(_, named)| is_same(named)));
        match found {
            Some((name, _)) if *name == initial.name => own = Some(member),
            Some(_) => {}
            None => return Err(JoinError::NoMatch { members: shown(), id: member.id, urls, difference }),
        }
    }
    may_join(version, versions.into_iter()).map_err(JoinError::Incompatible)?;
    match own {
        // It has its name from its first start.
        Some(own) if !own.name.is_empty() => Err(JoinError::Bootstrapped(own.id)),
        Some(own) => Ok((Identity { cluster, member: own.id }, members)),
        None => Err(JoinError::Count(shown())),
    }
}

/// Whether this member may begin a new cluster with the others, as far as one of them knows.
///
/// # Errors
/// [`JoinError`]
pub fn may_begin(initial: &InitialCluster, remote: Option<&RemoteCluster>) -> Result<(), JoinError> {
    let own = initial.own_id();
    let is_known = |member: &&Member| member.id == own && !member.client_ur_ls.is_empty();
    match remote.and_then(|remote| remote.members.iter().find(is_known)) {
        Some(_) => Err(JoinError::Bootstrapped(own)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: ClusterVersion = ClusterVersion { major: 3, minor: 7 };

    fn initial(name: &str) -> InitialCluster {
        let url = |name: &str| vec![format!("http://{name}:1")];
        InitialCluster {
            name: name.to_owned(),
            members: ["a", "b", "c"].iter().map(|name| ((*name).to_owned(), url(name))).collect(),
            advertised: url(name),
            token: "t".to_owned(),
            names_are_made_up: false,
        }
    }

    fn join_as_c(remote: Option<RemoteCluster>) -> Result<(Identity, Vec<Member>), JoinError> {
        let mut resolve = |host: &str| (host == "sea:1").then(|| "c:1".to_owned());
        join(&initial("c"), OWN, remote, &mut resolve)
    }

    /// Members with these names and hosts; with a name a member was started.
    fn remote(members: &[(&str, &str)]) -> Option<RemoteCluster> {
        let member = |(id, (name, host)): (u64, &(&str, &str))| {
            let (name, peer_ur_ls) = ((*name).to_owned(), vec![format!("http://{host}:1")]);
            Member { id, name, peer_ur_ls, ..Member::default() }
        };
        Some(RemoteCluster { id: 9, members: (1..).zip(members).map(member).collect(), versions: vec![OWN] })
    }

    #[test]
    fn a_member_takes_the_place_that_was_made_for_it() {
        let (identity, members) = join_as_c(remote(&[("a", "a"), ("b", "b"), ("", "c")])).unwrap();
        assert_eq!((identity, members.len()), (Identity { cluster: 9, member: 3 }, 3));
        let named = join_as_c(remote(&[("a", "a"), ("b", "b"), ("", "sea")])).unwrap();
        assert_eq!(named.0.member, 3, "another name of its address");
        let count = join_as_c(remote(&[("a", "a"), ("", "c")])).unwrap_err();
        assert!(count.to_string().ends_with("member count is unequal"), "{count}");
        let other = join_as_c(remote(&[("a", "a"), ("b", "b"), ("", "x")])).unwrap_err();
        assert!(
            other.to_string().contains(
                "no match found for existing member (3, [http://x:1]), last resolver error (resolved urls:"
            ),
            "{other}"
        );
        assert_eq!(join_as_c(None), Err(JoinError::NoAnswer));
    }

    /// Row 54 of the list of bugs: without its data, a member has forgotten its promises.
    #[test]
    fn bug_054_a_member_that_has_lost_its_data_is_not_itself_any_more() {
        let again = join_as_c(remote(&[("a", "a"), ("b", "b"), ("c", "c")]));
        assert_eq!(again, Err(JoinError::Bootstrapped(3)));
        let mut begun = remote(&[("a", "a"), ("b", "b"), ("c", "c")]).unwrap();
        begun.members[2].id = initial("c").own_id();
        assert_eq!(may_begin(&initial("c"), Some(&begun)), Ok(()), "the others wait for it");
        begun.members[2].client_ur_ls = vec!["http://c:2".to_owned()];
        assert!(may_begin(&initial("c"), Some(&begun)).is_err());
        assert_eq!(may_begin(&initial("b"), Some(&begun)), Ok(()));
        assert_eq!(may_begin(&initial("b"), None), Ok(()));
    }

    /// As etcd: it names its version once it is decided.
    #[test]
    fn a_cluster_of_another_version_is_not_joined() {
        let joined = |versions: &[ClusterVersion]| {
            let remote = remote(&[("a", "a"), ("b", "b"), ("", "c")]).unwrap();
            join_as_c(Some(RemoteCluster { versions: versions.to_vec(), ..remote }))
        };
        let newer = ClusterVersion { minor: 8, ..OWN };
        assert!(joined(&[ClusterVersion::MIN, OWN]).is_ok());
        assert_eq!(joined(&[OWN, newer]), Err(JoinError::Incompatible(Some(newer))));
        let undecided = joined(&[]).unwrap_err().to_string();
        assert!(undecided.starts_with("incompatible with current running cluster: no member"), "{undecided}");
    }
}
