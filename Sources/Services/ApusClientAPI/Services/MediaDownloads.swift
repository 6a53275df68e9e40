package import ApusCore
package import NIOCore

/// A file that a service offers over HTTP, such as a recording.
package struct MediaDownload: Sendable {
    package var contentType: String
    /// Another one for another content, without quotes: a strong entity tag.
    package var tag: String
    package var byteCount: Int
    /// How long a client may keep it, in seconds; 0: not at all.
    package var secondsKept: Int64
    /// The name under which a browser saves it; nil: it shows it.
    package var fileName: String?
    /// Whose downloads it counts among.
    package var account: AccountID
    /// Reads at most the bytes of a range of the file, and at least one. Called for one range after the other.
    ///
    /// Throws 12001, 12002 and 8002 if the right to the file was lost meanwhile.
    package var read: @Sendable (Range<Int>) async throws(ApusError) -> ByteBuffer

    package init(
        contentType: String, tag: String, byteCount: Int, secondsKept: Int64 = 0, fileName: String? = nil,
        account: AccountID, read: @escaping @Sendable (Range<Int>) async throws(ApusError) -> ByteBuffer
    ) {
        (self.contentType, self.tag, self.byteCount) = (contentType, tag, byteCount)
        (self.secondsKept, self.fileName, self.account) = (secondsKept, fileName, account)
        self.read = read
    }
}

/// The files of a service at addresses that it has sealed: `/v1/recordings/{address}/{file}`.
///
/// A service provides itself as this port (``ServicePorts``).
package protocol MediaDownloads: Sendable {
    /// The file of an address.
    ///
    /// - Throws: 12001 if this cluster did not make the address or its token is revoked, 12002 if it has expired, 8002
    ///   if there is no such file or the right to it was lost.
    func download(_ file: String, at address: String) async throws(ApusError) -> MediaDownload
}
