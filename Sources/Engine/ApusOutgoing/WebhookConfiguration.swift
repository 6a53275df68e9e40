/// The destination of messages: an HTTP endpoint, a directory, or both.
package struct WebhookConfiguration: Sendable, Hashable {
    /// `http://…` or `https://…`; nil for none. Key `push.webhook_url`.
    package var url: String?
    /// A file with the secret of the signatures. It is read for every message, so it can change while the node runs.
    /// Key `push.webhook_secret_file`.
    package var secretFile: String?
    /// A file with the certificates that `https` is checked against; nil: the certificates of the system. Key
    /// `push.webhook_authority_file`.
    package var authorityFile: String?
    /// A directory that receives each message as a file; nil for none. Key `push.spool_directory`.
    package var spoolDirectory: String?
    /// The most files in the spool directory. Another message is dropped. Key `push.spool_max`.
    package var spoolMax = 10_000
    /// The time limit of an attempt. Key `push.webhook_timeout`.
    package var timeout = Duration.seconds(5)
    package var queue = WebhookQueueStateMachine.Limits()

    package init() {}

    /// True if messages have no destination.
    package var isEmpty: Bool { url == nil && spoolDirectory == nil }
}
