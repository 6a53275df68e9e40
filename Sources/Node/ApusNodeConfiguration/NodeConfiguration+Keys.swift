package import ApusCore
package import ApusRelayService
import Foundation

extension NodeConfiguration {
    /// The keys that all nodes of a cluster share. Throws 10022 if the file does not hold one or two keys of 32 bytes.
    package func clusterKeys() throws(ApusError) -> ClusterKeys {
        let bytes = [UInt8](FileManager.default.contents(atPath: clusterKeyFile) ?? Data())
        do throws(ApusError) {
            return try ClusterKeys(fileContent: bytes)
        } catch {
            throw ApusError(
                .configurationInvalid,
                "the cluster key \(clusterKeyFile): \(error.message); `apus admin pki` creates one")
        }
    }

    /// The relay's keys. Throws 10022 if the cluster's key, the secret or the users cannot be read.
    package func relayKeys(_ keys: ClusterKeys) throws(ApusError) -> RelayKeys {
        try RelayKeys(root: keys.current, other: keys.other, configuration: relay)
    }
}
