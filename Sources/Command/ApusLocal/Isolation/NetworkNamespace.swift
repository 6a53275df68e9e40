import ApusCore
import CApusNamespaces
import Foundation
import Synchronization

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// Network namespaces with names, as ip-netns(8) keeps them. Only root may make and enter them.
enum NetworkNamespace {
    /// The folder with a file for each name.
    private static let folder = "/var/run/netns"

    private final class Outcome<Value: Sendable>: Sendable {
        let result = Mutex<Result<Value, ApusError>?>(nil)
    }

    /// The names of all namespaces of the machine.
    static func names() -> [String] { (try? FileManager.default.contentsOfDirectory(atPath: folder)) ?? [] }

    /// Runs a body in a namespace, on a thread of its own, and waits for it. Sockets that the body opens, and processes
    /// that it starts, stay in the namespace; this process does not.
    /// - Throws: 10022 if there is no such namespace, or this process may not enter it; the body's errors.
    static func run<Value: Sendable>(
        in name: String, _ body: @escaping @Sendable () throws(ApusError) -> Value
    ) throws(ApusError) -> Value {
        let outcome = Outcome<Value>()
        let ended = NSCondition()
        let thread = Thread {
            let result: Result<Value, ApusError>
            do throws(ApusError) {
                try Self.enter(name)
                result = .success(try body())
            } catch {
                result = .failure(error)
            }
            outcome.result.withLock { $0 = result }
            ended.withLock { ended.signal() }
        }
        ended.withLock {
            thread.start()
            while outcome.result.withLock({ $0 }) == nil { ended.wait() }
        }
        guard let result = outcome.result.withLock({ $0 }) else {
            throw ApusError(.internalFailure, "the thread in the network namespace \(name) ended early")
        }
        return try result.get()
    }

    private static func enter(_ name: String) throws(ApusError) {
        let error = -apus_namespace_enter("\(folder)/\(name)")
        guard error != 0 else { return }
        let hint = error == ENOENT ? "; `apus cluster up` makes it" : ""
        throw ApusError(
            .configurationInvalid,
            "the network namespace \(name) cannot be entered: \(String(cString: strerror(error)))\(hint)")
    }
}

/// Programs of the system, such as ip(8) and nft(8).
enum SystemTool {
    /// Folders of programs for root, which are not in every search path.
    private static let folders = ["/usr/sbin", "/sbin"]

    /// The path of a program; nil if it is not installed.
    static func find(_ name: String) -> String? {
        let path = ProcessInfo.processInfo.environment["PATH"] ?? "/usr/local/bin:/usr/bin:/bin"
        return (path.split(separator: ":").map { String($0) } + folders).map { "\($0)/\(name)" }
            .first { FileManager.default.isExecutableFile(atPath: $0) }
    }

    /// Runs a program to its end.
    /// - Parameter words: its name and its arguments.
    /// - Returns: its output.
    /// - Throws: 10022 if it is not installed, 10018 with its output if it fails.
    @discardableResult
    static func run(_ words: [String]) throws(ApusError) -> String {
        let name = words.first ?? ""
        guard let file = find(name) else { throw ApusError(.configurationInvalid, "\(name) is not installed") }
        let process = Process()
        process.executableURL = URL(fileURLWithPath: file)
        process.arguments = Array(words.dropFirst())
        process.standardInput = FileHandle.nullDevice
        let output = Pipe()
        process.standardOutput = output
        process.standardError = output
        do {
            try process.run()
        } catch {
            throw ApusError(.internalFailure, "\(file) cannot be started: \(error.localizedDescription)")
        }
        // Read before the wait: a full pipe would block the program.
        let said = (try? output.fileHandleForReading.readToEnd()) ?? Data()
        process.waitUntilExit()
        let text = String(decoding: said, as: UTF8.self)
        guard process.terminationStatus == 0 else {
            throw ApusError(
                .internalFailure,
                "`\(words.joined(separator: " "))` failed: \(text.trimmingCharacters(in: .whitespacesAndNewlines))")
        }
        return text
    }
}
