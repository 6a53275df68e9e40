import ApusTLS
import NIOPosix

extension Error {
    /// Why a connection failed, in words for people.
    var connectionReason: String {
        guard let error = self as? NIOConnectionError else { return ConnectionFailure.reason(self) }
        // Of a name with several addresses: the last attempt. Without any, the name is not known.
        return ConnectionFailure.reason(
            error.connectionErrors.last?.error ?? error.dnsAError ?? error.dnsAAAAError ?? error)
    }
}
