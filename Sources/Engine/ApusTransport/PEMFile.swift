import ApusCore
import Foundation

/// Reads small files of certificates and keys.
enum PEMFile {
    static func bytes(of path: String) throws -> [UInt8] {
        Array(try Data(contentsOf: URL(fileURLWithPath: path)))
    }
}
