package import ApusCore
package import ApusRelayService
import Foundation

extension NodeConfiguration {
    /// The key that all nodes of a cluster share. Throws 10022 if the file does not hold 32 bytes.
    package func clusterKey() throws(ApusError) -> [UInt8] {
        let bytes = [UInt8](FileManager.default.contents(atPath: clusterKeyFile) ?? Data())
        guard bytes.count == 32 else {
            throw ApusError(
                .configurationInvalid,
                "the cluster key \(clusterKeyFile) must hold 32 bytes; `apus admin pki` creates one")
        }
        return bytes
    }

    /// The relay's keys. Throws 10022 if the cluster's key, the secret or the users cannot be read.
    package func relayKeys() throws(ApusError) -> RelayKeys {
        try RelayKeys(root: clusterKey(), configuration: relay)
    }
}
