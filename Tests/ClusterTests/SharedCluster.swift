import ApusTestKit
import Foundation

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// A cluster of three nodes that tests of one suite share. To start one costs four seconds of processor time.
///
/// A test may use it if running nodes are all that it needs: it does not stop or restart a node, depends on nothing
/// that concerns all devices or customers, and reads no counter, metric or log of a node. Its accounts, customers,
/// devices, access ids and files have names that no other test of the suite uses, and what it starts ends with it.
///
/// The tests of a suite run one after the other. The cluster starts with the first test that uses it, and ends with
/// the process.
enum SharedCluster {
    private static let lock = NSLock()
    nonisolated(unsafe) private static var clusters: [Int: Cluster] = [:]  // SAFETY: used with the lock held only

    /// The cluster of the suite that has these ports.
    ///
    /// - Parameter environment: of the nodes, beside that of the tests; the same for all tests of the suite.
    /// - Throws: where the cluster does not start, or a node of it has ended since.
    static func cluster(basePort: Int, environment: [String: String] = [:]) throws -> Cluster {
        lock.lock()
        defer { lock.unlock() }
        if let cluster = clusters[basePort] {
            try requireHealthy(cluster)
            return cluster
        }
        let cluster = try Cluster(nodes: 3, basePort: basePort, environment: environment)
        if clusters.isEmpty { atexit { SharedCluster.endAll() } }
        clusters[basePort] = cluster
        return cluster
    }

    /// A test that runs after one that has lost a node fails here, and does not wait for answers.
    private static func requireHealthy(_ cluster: Cluster) throws {
        for node in 1...3 {
            let isUp = (1...5).contains { _ in NodeView(node, of: cluster).status?.state == "up" }
            guard isUp else {
                throw TestFailure("node \(node) of the suite's shared cluster is gone: \(cluster.file("n\(node)/log"))")
            }
        }
    }

    private static func endAll() {
        guard lock.try() else { return }
        for cluster in clusters.values { cluster.down() }
    }
}

extension Process {
    /// Ends a verb that a test has started in a cluster which it shares.
    func end() {
        if isRunning { terminate() }
        waitUntilExit()
    }
}
