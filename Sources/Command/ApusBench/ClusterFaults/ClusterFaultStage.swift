import ApusCluster
import ApusCore
import ApusLocal
import Foundation

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// Makes and ends faults of an isolated cluster whose ownership is in etcd.
///
/// Isolation: used by the benchmark's one task.
struct ClusterFaultStage {
    let stage: FailoverStage
    let executable: String

    private var state: StateDirectory { stage.local.directory }
    private var mark: StateDirectory.Mark { stage.local.mark }
    var nodes: [String] { mark.nodes.map(\.name) }
    /// The file that fills the disk.
    private var filler: String { "\(state.path)/filler" }

    /// What a fault concerns.
    struct Victims {
        var nodes: [String]
        /// The other side of a cut between two nodes.
        var other: String?
    }

    /// Chooses the nodes that a fault concerns.
    func victims(of fault: ClusterFault) -> Victims {
        let shuffled = nodes.shuffled()
        switch fault {
        case .split: return Victims(nodes: Array(shuffled.prefix(2)))
        case .cut, .cutOneWay: return Victims(nodes: [shuffled[0]], other: shuffled[1])
        case .storeLeader, .storeQuorum, .fullDisk: return Victims(nodes: [])
        default: return Victims(nodes: [shuffled[0]])
        }
    }

    /// Makes a fault.
    /// - Throws: 10018 if the system refuses a step.
    func make(_ fault: ClusterFault, _ victims: Victims) async throws {
        let rest = nodes.filter { !victims.nodes.contains($0) }
        switch fault {
        case .kill: try stage.signal(NodeName(unchecked: victims.nodes[0]), SIGKILL)
        case .stopShort, .stop, .stopLong: try stage.signal(NodeName(unchecked: victims.nodes[0]), SIGSTOP)
        case .partition, .split: try await change { try $0.cut(victims.nodes, rest, isOneWay: false) }
        case .silentOut: try await change { try $0.cut(victims.nodes, rest, isOneWay: true) }
        case .silentIn: try await change { try $0.cut(rest, victims.nodes, isOneWay: true) }
        case .cut, .cutOneWay:
            try await change { faults in
                try faults.cut(victims.nodes, [victims.other ?? ""], isOneWay: fault == .cutOneWay)
            }
        case .cutStore: try await change { $0.cutStore(of: victims.nodes[0]) }
        case .loss:
            let percent = Int.random(in: 5...30)
            try await change { try $0.setLoss(percent, of: victims.nodes[0]) }
        case .storeLeader: try signalStores([try await leader()], SIGKILL)
        case .storeQuorum: try signalStores(Array((mark.stores ?? []).map(\.name).shuffled().prefix(2)), SIGSTOP)
        case .fullDisk: try fillDisk()
        }
    }

    /// Ends a fault. A killed process is started again.
    func end(_ fault: ClusterFault) async throws {
        switch fault {
        case .kill, .stopShort, .stop, .stopLong: break
        case .partition, .split, .silentOut, .silentIn, .cut, .cutOneWay, .cutStore, .loss:
            try await state.locked {
                try await IsolatedNetwork(mark, in: state).apply(NetworkFaults())
            }
        case .storeLeader, .storeQuorum: break
        case .fullDisk: try? FileManager.default.removeItem(atPath: filler)
        }
        for store in mark.stores ?? [] {
            let process = try EtcdMember.process(store, in: state, mark)
            _ = process.signal(SIGCONT)
            if process.pid == nil {
                try FailoverStage.run(executable, ["cluster", "restart", store.name, "--dir", state.path])
            }
        }
        try await EtcdMember.waitUntilHealthy(mark.stores ?? [], in: state, mark, timeout: .seconds(20))
        try await stage.heal()
    }

    /// Ends whatever is left of any fault.
    func clear() async {
        try? FileManager.default.removeItem(atPath: filler)
        try? await state.locked { try await IsolatedNetwork(mark, in: state).apply(NetworkFaults()) }
    }

    private func change(_ body: (inout NetworkFaults) throws -> Void) async throws {
        try await state.locked {
            var faults = NetworkFaults()
            try body(&faults)
            try await IsolatedNetwork(mark, in: state).apply(faults)
        }
    }

    // MARK: etcd

    private func signalStores(_ names: [String], _ number: CInt) throws {
        for store in mark.stores ?? [] where names.contains(store.name) {
            guard try EtcdMember.process(store, in: state, mark).signal(number) else {
                throw ApusError(.internalFailure, "\(store.name) has no process to signal")
            }
        }
    }

    /// What a member of etcd says of itself.
    private struct MemberStatus: Decodable {
        struct Header: Decodable { var member_id: String }
        var header: Header
        var leader: String
    }

    private func leader() async throws -> String {
        for store in mark.stores ?? [] {
            guard let address = HostPort(store.clients),
                let answer = try? await NodeHTTP.send(
                    "POST", "/v3/maintenance/status", to: address, body: "{}", timeout: .seconds(2)),
                let status = try? JSONDecoder().decode(MemberStatus.self, from: Data(answer.body))
            else { continue }
            if status.leader == status.header.member_id { return store.name }
        }
        throw ApusError(.internalFailure, "no member of etcd is the leader")
    }

    // MARK: The disk

    /// Takes all space of the file system of the state directory, which is one of its own.
    private func fillDisk() throws {
        let file = open(filler, O_WRONLY | O_CREAT | O_CLOEXEC, 0o600)
        guard file >= 0 else { throw ApusError(.storageFailed, "\(filler) cannot be made") }
        defer { close(file) }
        let block = [UInt8](repeating: 1, count: 1 << 16)
        var size = block.count
        while size > 0 {
            let written = write(file, block, size)
            if written < size { size /= 2 }
        }
    }
}
