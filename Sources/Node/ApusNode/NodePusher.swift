import ApusCalls
import ApusCore
import ApusWebhooks

/// Passes push notifications of calls to the webhook.
struct NodePusher: CallPusher {
    private let sender: WebhookSender

    init(_ sender: WebhookSender) { self.sender = sender }

    var isUsed: Bool { sender.isUsed }

    func push(id: String, owner: String, _ body: [UInt8], timeLeft: Duration) {
        sender.send(WebhookMessage(id: id, owner: owner, body: body, expiresAt: .now() + timeLeft))
    }

    func cancel(id: String, then next: CallPushMessage?) {
        let message = next.map {
            WebhookMessage(id: $0.id, owner: $0.owner, body: $0.body, expiresAt: .now() + $0.timeLeft)
        }
        sender.cancel(id: id, then: message)
    }
}
