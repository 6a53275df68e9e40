import NIOCore

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// Why a connection failed, in words for people: without the names, numbers and files of the libraries below.
package enum ConnectionFailure {
    /// - Parameter error: of a connect, or of a channel. Of several attempts, that of one.
    package static func reason(_ error: any Error) -> String {
        switch error {
        case let error as TLSError: error.description
        case let error as IOError: text(ofSystem: error.errnoCode)
        case let error as SocketAddressError.UnknownHost: "the name \(error.host) cannot be resolved"
        case ChannelError.connectTimeout: "it did not answer in time"
        case ChannelError.ioOnClosedChannel, ChannelError.alreadyClosed, ChannelError.eof: "the connection has ended"
        default: "\(error)"
        }
    }

    /// What the system calls an error, such as "connection refused".
    private static func text(ofSystem number: CInt) -> String {
        guard let text = strerror(number) else { return "error \(number) of the system" }
        let words = String(cString: text)
        return words.prefix(1).lowercased() + words.dropFirst()
    }
}
