import ApusNode
import ApusTransport
import ApusWire
import Foundation
import Testing

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

@Suite("The record of a node's processes (D4)")
struct ProcessRecordTests {
    private let path = NSTemporaryDirectory() + "/apus-record-\(UUID().uuidString)"

    private func withDirectory(_ body: () throws -> Void) throws {
        try FileManager.default.createDirectory(atPath: path, withIntermediateDirectories: true)
        defer { try? FileManager.default.removeItem(atPath: path) }
        try body()
    }

    @Test("A process that executes the program again has ended as what it was before; the last eight joins are kept")
    func inPlace() throws {
        try withDirectory {
            let record = ProcessRecord(directory: path)
            #expect(record.ended.isEmpty)
            for number in 1...10 as ClosedRange<UInt64> { try record.add(number) }
            #expect(record.ended == Set(3...10))
        }
    }

    @Test("Another process has ended when the kernel has none of its number and start; one of another boot is unknown")
    func other() throws {
        try withDirectory {
            let child = Process()
            child.executableURL = URL(fileURLWithPath: "/bin/sleep")
            child.arguments = ["60"]
            try child.run()
            let pid = child.processIdentifier
            let stat = try String(contentsOfFile: "/proc/\(pid)/stat", encoding: .utf8)
            // The 22nd field; the second one ends with a parenthesis.
            let started = try #require(stat.split(separator: ")").last?.split(separator: " ").dropFirst(19).first)
            let host = LocalProcess.current().host
            let lines = "5 \(host) \(pid) \(started)\n6 \(host &+ 1) \(pid) \(started)\nnothing\n"
            try Data(lines.utf8).write(to: URL(fileURLWithPath: path + "/processes"))
            let record = ProcessRecord(directory: path)
            #expect(record.ended.isEmpty)
            kill(pid, SIGKILL)
            child.waitUntilExit()
            #expect(record.ended == [5])
        }
    }
}
