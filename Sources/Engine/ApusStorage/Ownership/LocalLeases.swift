import ApusCore
import Foundation

/// The leases of the nodes on one machine: a file for each name in a directory beside the store (D4).
///
/// A lease ends at a time of the machine's monotonic clock, which all its processes share; the clock's start is
/// identified by the boot. Nothing is synced: after a crash of the machine no lease is valid.
///
/// Not thread-safe: ``LocalOwnershipStore`` confines it to a queue.
struct LocalLeases: Sendable {
    /// The longest file of a lease, in bytes.
    private static let byteCountMax = 256

    let directory: String
    private let boot =
        (try? String(contentsOfFile: "/proc/sys/kernel/random/boot_id", encoding: .utf8))?
        .trimmingCharacters(in: .whitespacesAndNewlines) ?? ""

    /// - Throws: 10021 if the file cannot be written.
    func renew(_ node: NodeID, for duration: Duration) throws(ApusError) {
        let end = (MonotonicTime.now() + duration).nanoseconds
        let line = "\(node.incarnation) \(end) \(boot)\n"
        do {
            try FileManager.default.createDirectory(atPath: directory, withIntermediateDirectories: true)
            try Data(line.utf8).write(to: URL(fileURLWithPath: "\(directory)/\(node.name)"), options: .atomic)
        } catch {
            throw ApusError(.storageFailed, "the lease in \(directory) cannot be written: \(error)")
        }
    }

    /// - Throws: 10021 if the directory cannot be read.
    func holders() throws(ApusError) -> Set<NodeID> {
        guard FileManager.default.fileExists(atPath: directory) else { return [] }
        let names: [String]
        do {
            names = try FileManager.default.contentsOfDirectory(atPath: directory)
        } catch {
            throw ApusError(.storageFailed, "the leases in \(directory) cannot be read: \(error)")
        }
        let now = MonotonicTime.now().nanoseconds
        return Set(names.sorted().prefix(OwnershipLimits.leaseCountMax).compactMap { holder($0, now: now) })
    }

    private func holder(_ file: String, now: UInt64) -> NodeID? {
        guard let name = NodeName(rawValue: file),
            let bytes = FileManager.default.contents(atPath: "\(directory)/\(file)"),
            bytes.count <= Self.byteCountMax
        else { return nil }
        let parts = String(decoding: bytes, as: UTF8.self).split(whereSeparator: \.isWhitespace)
        guard parts.count == 3, let incarnation = UInt64(parts[0]), let end = UInt64(parts[1]), end > now,
            parts[2] == boot
        else { return nil }
        return NodeID(name: name, incarnation: incarnation)
    }
}
