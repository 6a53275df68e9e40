public import Logging

/// The metadata keys of log lines. A log message is a constant sentence. The facts are in the metadata under these
/// keys, so that lines can be searched by them.
public enum LogKey {
    public static let cluster = "apus.cluster"
    public static let node = "apus.node"
    public static let peer = "apus.peer"
    public static let helper = "apus.helper"
    public static let lane = "apus.lane"
    public static let shard = "apus.shard"
    public static let epoch = "apus.epoch"
    public static let revision = "apus.revision"
    public static let device = "apus.device"
    public static let account = "apus.account"
    public static let access = "apus.access"
    public static let session = "apus.session"
    public static let channel = "apus.channel"
    public static let sequence = "apus.seq"
    public static let address = "apus.address"
    public static let method = "apus.method"
    public static let error = "apus.error"
    public static let code = "apus.code"
    public static let reason = "apus.reason"
    public static let count = "apus.count"
    public static let milliseconds = "apus.ms"
    public static let path = "apus.path"
    public static let allocation = "apus.allocation"
    public static let user = "apus.user"
    public static let bytes = "apus.bytes"
    public static let evidence = "apus.evidence"
    public static let pressure = "apus.pressure"
    public static let condition = "apus.condition"
    public static let listener = "apus.listener"
    public static let message = "apus.message"
    public static let leftOut = "apus.left_out"
    public static let keys = "apus.keys"
    public static let limit = "apus.limit"
    public static let process = "apus.process"
    public static let role = "apus.role"
    public static let target = "apus.target"
    /// The id of a play session: 32 hexadecimal digits, as a trace has them.
    public static let play = "apus.play"
    /// The number of a device's source.
    public static let source = "apus.source"
    /// Marks a line that may be folded with others of its kind.
    public static let folded = "apus.folded"
}

extension Logger {
    /// The number and the message of an error, as metadata.
    public static func facts(of error: any Error) -> Logger.Metadata {
        if let error = error as? ApusError {
            return [LogKey.code: "\(error.code.number)", LogKey.error: "\(error.message)"]
        }
        return [LogKey.error: "\(error)"]
    }
}
