package import ApusCore
import Foundation

/// The identity of a build of the program: a hash of samples of its file, in 12 hexadecimal digits.
///
/// It tells an operator, and `apus cluster upgrade`, whether two nodes run the same program. It is no signature.
/// Samples are enough for most changes, because a change of the code's length moves everything after it. Two builds
/// that differ in a constant of the same length may have one identity. A whole file of 100 MB would delay the start of
/// a node.
package enum ProgramBuild {
    private static let sampleCount: UInt64 = 64
    private static let sampleByteCount = 4096

    /// The build of this process; `unknown` if its file cannot be read.
    package static let own: String = (try? of("/proc/self/exe")) ?? "unknown"

    /// The build of a file.
    ///
    /// - Throws: 10022 if it cannot be read.
    package static func of(_ path: String) throws(ApusError) -> String {
        do {
            let file = try FileHandle(forReadingFrom: URL(fileURLWithPath: path))
            defer { try? file.close() }
            let size = try file.seekToEnd()
            var hash = StableHash.mix(size)
            for number in 0..<sampleCount {
                try file.seek(toOffset: size / sampleCount * number)
                for byte in try file.read(upToCount: sampleByteCount) ?? Data() {
                    hash = (hash ^ UInt64(byte)) &* 0x100_0000_01b3
                }
            }
            let text = String(StableHash.mix(hash) >> 16, radix: 16)
            return String(repeating: "0", count: 12 - text.count) + text
        } catch {
            throw ApusError(.configurationInvalid, "\(path) cannot be read: \(error.localizedDescription)")
        }
    }
}
