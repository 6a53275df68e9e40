package import ApusCore
package import Foundation

/// A history in a file, so that a failed episode can be kept and checked again.
///
/// The format is JSON Lines. The first line names the format and the number of operations. Each further line is an
/// operation, by the time of its invocation. Times are nanoseconds of the machine's monotonic clock.
///
///     {"format":"apus-history","operations":2,"version":1}
///     {"client":0,"entity":"r-1","invoked_ns":100,"new":7,"op":"write","outcome":"ok","returned_ns":220}
///     {"client":1,"entity":"r-1","invoked_ns":130,"op":"read","outcome":"value","returned_ns":180,"value":7}
package enum HistoryFile {
    /// The version that is written, and the newest that is read.
    package static let version = 1

    /// The contents of a file.
    package struct Contents: Sendable {
        /// By the time of their invocation.
        package var operations: [RegisterOperation]
        /// What is missing, as a sentence for people; nil if the file is whole.
        ///
        /// The lost operations were invoked no earlier than the last one of ``operations``. Whatever returned after
        /// that time may depend on them, so its outcome is unknown in ``operations``. The check then covers the
        /// history up to that time and reports no violation that the lost operations would explain.
        package var cut: String?
    }

    /// Writes a file, and replaces an earlier one.
    ///
    /// - Throws: 10021 if the file cannot be written.
    package static func write(_ operations: [RegisterOperation], to path: String) throws(ApusError) {
        let encoder = JSONEncoder()
        encoder.outputFormatting = [.sortedKeys, .withoutEscapingSlashes]
        let ordered = operations.enumerated()
            .sorted { ($0.element.invokedAt, $0.offset) < ($1.element.invokedAt, $1.offset) }.map(\.element)
        do {
            try Data().write(to: URL(fileURLWithPath: path))
            let file = try FileHandle(forWritingTo: URL(fileURLWithPath: path))
            defer { try? file.close() }
            var bytes = try encoder.encode(Head(version: version, operations: ordered.count))
            bytes.append(UInt8(ascii: "\n"))
            for operation in ordered {
                bytes.append(try encoder.encode(Line(operation)))
                bytes.append(UInt8(ascii: "\n"))
                guard bytes.count >= writeByteCount else { continue }
                try file.write(contentsOf: bytes)
                bytes.removeAll(keepingCapacity: true)
            }
            try file.write(contentsOf: bytes)
        } catch {
            throw ApusError(.storageFailed, "the history \(path) cannot be written: \(error.localizedDescription)")
        }
    }

    /// Bytes that are collected for one write.
    private static let writeByteCount = 1 << 20

    /// Reads a file. A last line that is cut, and missing lines at the end, are reported in ``Contents/cut``.
    ///
    /// - Throws: 10021 if the file cannot be read, 10001 if it is not a history or another line than the last one is
    ///   damaged.
    package static func read(_ path: String) throws(ApusError) -> Contents {
        guard let data = FileManager.default.contents(atPath: path) else {
            throw ApusError(.storageFailed, "the history \(path) cannot be read")
        }
        return try contents(of: data, name: path)
    }

    /// The same of bytes in memory.
    ///
    /// - Parameter name: the name of the history in errors.
    package static func contents(of data: Data, name: String) throws(ApusError) -> Contents {
        let decoder = JSONDecoder()
        let lines = data.split(separator: UInt8(ascii: "\n"))
        guard let first = lines.first, let head = try? decoder.decode(Head.self, from: first),
            head.format == Head.name
        else { throw ApusError(.malformed, "\(name) is not a history: its first line does not say so") }
        guard head.version <= version else {
            throw ApusError(.versionUnsupported, "\(name) has version \(head.version) of the format, not \(version)")
        }
        var operations: [RegisterOperation] = []
        operations.reserveCapacity(lines.count - 1)
        var cut: String?
        for (index, line) in lines.enumerated().dropFirst() {
            if let operation = (try? decoder.decode(Line.self, from: line))?.operation {
                operations.append(operation)
            } else if index == lines.count - 1 {
                cut = "\(name) ends within line \(index + 1)"
            } else {
                throw ApusError(.malformed, "line \(index + 1) of \(name) is no operation")
            }
        }
        guard operations.count <= head.operations else {
            throw ApusError(.malformed, "\(name) has more operations than its first line says")
        }
        if operations.count < head.operations {
            let missing = head.operations - operations.count
            cut = "\(cut ?? "\(name) ends after line \(lines.count)"): \(missing) of \(head.operations) operations are "
                + "missing, and the history is checked up to the last one that is there"
        }
        return Contents(operations: cut == nil ? operations : bounded(operations), cut: cut)
    }

    /// The part of a history that operations after its end cannot change.
    private static func bounded(_ operations: [RegisterOperation]) -> [RegisterOperation] {
        guard let end = operations.map(\.invokedAt).max() else { return [] }
        return operations.map { operation in
            guard let returnedAt = operation.returnedAt, returnedAt >= end, operation.outcome != .failed else {
                return operation
            }
            var operation = operation
            (operation.outcome, operation.returnedAt) = (.unknown, nil)
            return operation
        }
    }

    // MARK: Lines

    private struct Head: Codable {
        static let name = "apus-history"
        var format = Head.name
        var version: Int
        var operations: Int

        init(version: Int, operations: Int) { (self.version, self.operations) = (version, operations) }
    }

    private struct Line: Codable {
        var client: Int
        var entity: String
        var op: String
        var expected: UInt64?
        var new: UInt64?
        var invoked_ns: UInt64
        var returned_ns: UInt64?
        var outcome: String
        var value: UInt64?

        init(_ operation: RegisterOperation) {
            (client, entity) = (operation.client, operation.entity)
            invoked_ns = operation.invokedAt.nanoseconds
            returned_ns = operation.returnedAt?.nanoseconds
            switch operation.request {
            case .read: op = "read"
            case .write(let value): (op, new) = ("write", value)
            case .compareAndSwap(let expected, let new): (op, self.expected, self.new) = ("cas", expected, new)
            }
            switch operation.outcome {
            case .value(let value): (outcome, self.value) = ("value", value)
            case .ok: outcome = "ok"
            case .mismatch(let value): (outcome, self.value) = ("mismatch", value)
            case .unknown: outcome = "unknown"
            case .failed: outcome = "failed"
            }
        }

        /// Nil if the line contradicts itself.
        var operation: RegisterOperation? {
            guard let request, let known, RegisterOperation.isPossible(known, of: request) else { return nil }
            let isOpen = known == .unknown
            guard isOpen || (returned_ns ?? 0) >= invoked_ns else { return nil }
            return RegisterOperation(
                client: client, entity: entity, request: request, invokedAt: MonotonicTime(nanoseconds: invoked_ns),
                returnedAt: isOpen ? nil : returned_ns.map { MonotonicTime(nanoseconds: $0) }, outcome: known)
        }

        private var request: RegisterOperation.Request? {
            switch (op, expected, new) {
            case ("read", nil, nil): .read
            case ("write", nil, let new?): .write(new)
            case ("cas", let expected?, let new?): .compareAndSwap(expected: expected, new: new)
            default: nil
            }
        }

        private var known: RegisterOperation.Outcome? {
            switch (outcome, value) {
            case ("value", let value?): .value(value)
            case ("ok", nil): .ok
            case ("mismatch", let value?): .mismatch(value)
            case ("unknown", nil): .unknown
            case ("failed", nil): .failed
            default: nil
            }
        }
    }
}
