/// The bounds of clients' requests and events (D13, D17).
package struct ClientAPIConfiguration: Sendable {
    /// Requests of one connection that are in progress; one more is refused with 10007. Key
    /// `api.requests_per_connection_max`.
    package var requestsPerConnectionMax = 64
    /// How long a request may take where its client names no time; then 10005. Key `api.request_timeout`.
    package var requestTimeout: Duration = .seconds(10)
    /// The longest time that a client may name. Key `api.request_timeout_max`.
    package var requestTimeoutMax: Duration = .seconds(60)
    /// Requests a second of all clients of an account at one node together; one more is refused with 10007. Key
    /// `api.requests_per_second`.
    package var requestsPerSecond = 2000
    /// The same for each kind of request. Key `api.requests_per_second_each`.
    package var requestsPerSecondEach = 1000
    /// Events that wait for one connection; see ``ClientEventQueue``. Key `api.events_max`.
    package var eventsMax = 256

    /// Topics to which the clients of one node are subscribed; a subscription to one more is refused with 10007. Key
    /// `api.topics_max`.
    package var topicsMax = 65_536
    /// Topics, except presence, to which one connection is subscribed; one more is refused with 10007. Key
    /// `api.subscriptions_max`.
    package var subscriptionsMax = 1000

    package init() {}
}
