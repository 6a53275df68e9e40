import ApusCore
import ApusLocal
import Testing

@Suite("Keys of a local cluster's nodes in the environment")
struct NodeEnvironmentTests {
    @Test("A variable overrides a key of all nodes, except what is one node's own")
    func variables() throws {
        let node = NodeConfigurationFile.node(1, basePort: 7400, network: nil)
        let text = NodeConfigurationFile.text(node, cluster: "local")
        let removed = Set(try NodeProcess.ownVariables(of: text, source: "n1.yaml"))
        for own in [
            "APUS_CLUSTER", "APUS_NODE", "APUS_DATA_DIRECTORY", "APUS_DATA_DIR", "APUS_LISTEN_HTTP",
            "APUS_OWNERSHIP_DIRECTORY", "APUS_RECORDS_FILE", "APUS_TLS_KEY", "APUS_KEYS_TOKEN_PRIVATE",
            "APUS_RELAY_ADDRESSES", "APUS_RELAY_PORT", "APUS_RELAY_TLS_PORT",
        ] {
            #expect(removed.contains(own), "\(own)")
        }
        for shared in ["APUS_THREADS", "APUS_RELAY_ENABLED", "APUS_RELAY_THREADS", "APUS_RELAY_OPEN"] {
            #expect(!removed.contains(shared), "\(shared)")
        }
    }
}
