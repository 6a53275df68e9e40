import Foundation

/// External tools that tests use to make clips and to check results, if the machine has them.
package enum Tool {
    /// The path of ffmpeg; nil if it is not installed.
    package static let ffmpeg = find("ffmpeg")
    /// The path of ffprobe; nil if it is not installed.
    package static let ffprobe = find("ffprobe")

    /// The path of openssl; nil if it is not installed.
    package static let openssl = find("openssl")

    private static func find(_ name: String) -> String? {
        ["/usr/bin/", "/usr/local/bin/"].map { $0 + name }.first { FileManager.default.isExecutableFile(atPath: $0) }
    }

    /// Runs a tool and returns its standard output; nil if it failed.
    package static func run(_ tool: String, _ arguments: [String]) -> String? {
        let process = Process()
        process.executableURL = URL(fileURLWithPath: tool)
        process.arguments = arguments
        let output = Pipe()
        process.standardOutput = output
        process.standardError = FileHandle.nullDevice
        process.standardInput = FileHandle.nullDevice
        do { try process.run() } catch { return nil }
        let data = output.fileHandleForReading.readDataToEndOfFile()
        process.waitUntilExit()
        return process.terminationStatus == 0 ? String(decoding: data, as: UTF8.self) : nil
    }
}
