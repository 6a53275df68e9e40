import ApusTestKit
import Foundation
import Synchronization

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
/// The cluster starts with the first test that uses it, and ends with the process.
enum SharedCluster {
    private struct Entry: @unchecked Sendable {  // SAFETY: the tests of a suite run one after the other (.serialized)
        let cluster: Cluster
    }

    /// By the first port, which names the suite.
    private static let entries = Mutex<[Int: Entry]>([:])

    /// The cluster of the suite that has these ports.
    ///
    /// - Parameter environment: of the nodes, beside that of the tests; the same for all tests of the suite.
    /// - Throws: where the cluster does not start, or a node of it has ended since.
    static func cluster(basePort: Int, environment: [String: String] = [:]) throws -> Cluster {
        let entry = try entries.withLock { entries throws -> Entry in
            if let known = entries[basePort] {
                try requireHealthy(known.cluster)
                return known
            }
            let entry = Entry(cluster: try Cluster(nodes: 3, basePort: basePort, environment: environment))
            if entries.isEmpty { atexit { SharedCluster.endAll() } }
            entries[basePort] = entry
            return entry
        }
        return entry.cluster
    }

    /// A test that follows one that has lost a node fails here, and does not wait for answers.
    private static func requireHealthy(_ cluster: Cluster) throws {
        for node in 1...3 {
            let isUp = (1...5).contains { _ in NodeView(node, of: cluster).status?.state == "up" }
            guard isUp else {
                throw TestFailure("node \(node) of the suite's shared cluster is gone: \(cluster.file("n\(node)/log"))")
            }
        }
    }

    private static func endAll() {
        guard let started = entries.withLockIfAvailable({ $0 }) else { return }
        for entry in started.values { entry.cluster.down() }
    }
}

extension Process {
    /// Ends a verb that a test has started in a cluster which it shares.
    func end() {
        if isRunning { terminate() }
        waitUntilExit()
    }
}
