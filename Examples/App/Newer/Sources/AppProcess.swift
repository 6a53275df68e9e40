import Logging
import NIOCore
import NIOPosix

/// What the parts of an app share: its log and its event loops.
public enum AppProcess {
    /// A logger that writes to standard error.
    public static func log(_ label: String) -> Logger {
        Logger(label: label) { StreamLogHandler.standardError(label: $0) }
    }

    /// One of the process's event loops.
    public static func eventLoop() -> any EventLoop { MultiThreadedEventLoopGroup.singleton.next() }
}
